"""The engines' benchmark: the same workload through every arm, interleaved, in several rounds.

    workload A   round 0   paged │ slabs │ batch │ ...      one fresh process each
                 round 1   ... │ batch │ slabs │ paged      the other way round
                 ...                                        further on, turned by one

    each round   a run directory of its own, as the walkthrough writes it
                   └─► rows (one for each arm) ─► reports/bench/engine.json ─► table, Markdown

Every figure of a row is computed from the record; ratios are taken within a round, where a busy
moment of the machine meets both arms, and shown as their median and spread over the rounds.
"""
