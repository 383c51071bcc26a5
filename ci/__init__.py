"""What a maintainer runs and a reviewer reads: pipelines, ledgers, attribution, checks.

Everything that a pipeline needs is decided by pure functions (`shards`, `pipeline`, `lint`,
`ledger`, `attribution`); `collecting`, `changes`, `step`, `reruns` and `premerge` run programs;
`publish` alone speaks to a CI service, and `settings` alone reads its variables.
"""
