"""What every part uses: errors with codes, atomic writes and checksums, near names."""
