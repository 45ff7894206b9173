"""How much an arm tells while it runs; the same for every arm, so that their logs compare."""

# A whole picture of the tables every so many steps: a reader that seeks replays no more than these.
KEYFRAME_EVERY = 64
# Each reading after a request makes the arm stand still for some 25 ms; a long workload is
# sampled all the time anyway.
MAX_REQUEST_MARKS = 16
