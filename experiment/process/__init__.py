"""Child processes: started, talked to, ended, and what they leave cleaned up."""
