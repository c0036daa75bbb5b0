"""CWC: one model visits the hospitals in turn, and a penalty protects important parameters.

"Cyclical Weight Consolidation: Towards Solving Catastrophic Forgetting in Serial Federated
Learning", arXiv:2405.10647. The model travels as in cwt_serial.py, with a consolidation matrix C
that has an entry for each parameter i. w̃ are the parameters that hospital k receives at round r,
and Ω^{k,r} is the importance that each parameter gained during the visit:

    L̃_k(w) = L_k(w) + σ Σ_i C_i^{k,r} (w_i − w̃_i)²                            (Eq. 3)
    C^{k+1,r} = C^{k,r} + Ω^{k,r},  C^{1,1} = 0                                (Eq. 4)
    C^{1,r+1} = γ (C^{K,r} + Ω^{K,r})                                          (Eq. 5)

σ is `cwc.strength`, and γ is `cwc.decay`. `cwc.importance` chooses the estimate of Ω.

Deviations:
 1. The printed equations were not available. These follow the paper's text, without the factor ½
    that other papers give the penalty.
 2. If all hospitals miss a round, C decays once more at the start of the next round.

The hospital's half: learning/learners/cwc.py.
"""

from flwr.app import ArrayRecord

from strategies.cwt_serial import CWTSerial
from strategies.protocol.parcel import is_sealed
from strategies.protocol.records import Layout, ParcelError, layout_of


class CWC(CWTSerial):
    """Serial hand-off with the consolidating learner."""

    learner = "cwc"

    def check_memory(self, memory: ArrayRecord, layout: Layout) -> None:
        """Refuse (ParcelError) a memory that is no C of its model; a sealed one passes.

        The server does not know which arrays are parameters; weights and biases are.
        """
        if is_sealed(memory):
            return
        least = {name for name in layout if name.endswith((".weight", ".bias"))}
        wanted = {name: ("float32", shape) for name, (_, shape) in layout.items() if name in memory}
        fits = least <= {*memory} and layout_of(memory) == wanted
        if not fits or any((array.numpy() < 0).any() for array in memory.values()):
            raise ParcelError("The memory is not a consolidation matrix of its model.")
