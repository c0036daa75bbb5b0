"""What a hospital decides and remembers: policy, ledger, identity, members, seals, accounts."""
