"""Authorisation tokens for scopes: how they are sealed, with which keys, and the policy of a relay that takes them."""
