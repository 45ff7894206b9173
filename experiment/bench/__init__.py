"""The engines' benchmark: the same workload through every arm, interleaved, in several rounds.

    workload A   round 0   paged │ slabs │ batch │ ...      one fresh process each
                 round 1   ... │ batch │ slabs │ paged      reversed
                 ...                                        then rotated by one

    each round   a run directory, as of the walkthrough
                   └─► rows (one for each arm) ─► reports/bench/engine.json ─► table, Markdown

Every figure of a row is computed from the record. Ratios are computed within a round, where
background load affects both arms, and reported as median and spread over the rounds.
"""
