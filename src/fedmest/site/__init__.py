"""What runs at a hospital: the vault that holds the rows, its policy, and the ledger of what has left."""
