"""Attacks on our own releases: the distinguishing game, played thousands of times.

Two data sets of one site differ in one row. Somebody who chose both rows, all other rows and the messages of the
server, and who sees every reply of the site over the whole schedule, has to say which of the two the site holds.
From how often that goes wrong follows a lower bound on mu: of mu-Gaussian privacy, false positives at rate a and false
negatives at rate b leave mu >= Phi^-1(1 - a) - Phi^-1(b) (Dong, Roth, Su 2022), and Clopper and Pearson's intervals for
a and b make a bound with a confidence of it.

Sites are the games: a federation of thousands of sites with the same rows, each with noise of its own, is asked along
the schedule by the backend that `fit` uses. Beside every site under attack stands another whose rows the attacker
knows, in case that their noise has something in common. Replies without noise and noise that repeats itself, which no
test of two data sets would have to show, are looked for as well.
"""

from fedmest.auditing.attack import UnitNoise
from fedmest.auditing.game import audit
from fedmest.auditing.result import AuditResult
from fedmest.auditing.scenarios import NETWORK, small_network
from fedmest.auditing.sweep import AuditCase, audit_all, cases

__all__ = ["NETWORK", "AuditCase", "AuditResult", "UnitNoise", "audit", "audit_all", "cases", "small_network"]
