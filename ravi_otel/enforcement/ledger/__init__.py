"""Keep accounts: the contract, and the ledgers that fulfil it."""
