"""Who may do what through a relay: the policy it asks, and one that reads C4M tokens (draft-22 sections 4.2 and 9)."""

from moqt.auth.bearer import NOT_GRANTED, BearerPolicy, Terms
from moqt.auth.claims import Claims, claim_map, claims_of
from moqt.auth.policy import Action, AllowAll, Policy, Query, Recheck, Refusal, Token
from moqt.auth.scopes import ACTION_NUMBERS, Match, MatchKind, Scope, permits, scopes_of

__all__ = [
    "ACTION_NUMBERS",
    "NOT_GRANTED",
    "Action",
    "AllowAll",
    "BearerPolicy",
    "Claims",
    "Match",
    "MatchKind",
    "Policy",
    "Query",
    "Recheck",
    "Refusal",
    "Scope",
    "Terms",
    "Token",
    "claim_map",
    "claims_of",
    "permits",
    "scopes_of",
]
