"""The hospital's decisions and memory: policy, ledger, identity, members, seals, accounts."""
