"""CWC: one model visits hospital after hospital, and holds on to what was important before.

"Cyclical Weight Consolidation: Towards Solving Catastrophic Forgetting in Serial Federated
Learning", arXiv:2405.10647. The model travels as in cwt_serial.py, with a consolidation matrix C
that has an entry for each parameter i. With w̃ the parameters as received by hospital k at round r,
and Ω^{k,r} how important each parameter became during the visit:

    L̃_k(w) = L_k(w) + σ Σ_i C_i^{k,r} (w_i − w̃_i)²                            (Eq. 3)
    C^{k+1,r} = C^{k,r} + Ω^{k,r},  C^{1,1} = 0                                (Eq. 4)
    C^{1,r+1} = γ (C^{K,r} + Ω^{K,r})                                          (Eq. 5)

σ is `cwc.strength`, γ `cwc.decay`; Ω is estimated as `cwc.importance` says.

Deviations:
 1. The printed equations could not be had; these are what the text says, without the factor ½ that
    other papers give the penalty.
 2. If all hospitals miss a round, C decays at the start of the next one once more.

The hospital's half: learning/learners/cwc.py.
"""

from strategies.cwt_serial import CWTSerial


class CWC(CWTSerial):
    """Serial hand-off with the consolidating learner."""

    learner = "cwc"
