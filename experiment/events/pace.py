"""How often an arm reports; equal for all arms, so that their logs compare."""

# Steps between keyframes: a reader that seeks replays at most this many.
KEYFRAME_EVERY = 64
# Each reading after a request pauses the arm for about 25 ms; long workloads are sampled anyway.
MAX_REQUEST_MARKS = 16
