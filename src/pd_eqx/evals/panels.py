"""How the metrics of `metrics.jsonl` are grouped for a reader: which share an axis, and what that axis is."""

# A title, the kind of metric it shows (what its name begins with), and what its axis is.
PANELS: tuple[tuple[str, str, str], ...] = (
    ("Losses", "loss/", "unweighted loss"),
    ("Reconstruction", "eval/reconstruction/", "distance from the clean output"),
    ("Faithfulness", "eval/faithfulness_relative/", "unexplained share of the weights"),
    ("L0", "eval/l0/", "active components a position"),
    ("Alive components", "eval/alive/", "components"),
    ("Identity error", "eval/identity_ci_error/", "entries on the wrong side"),
    ("Gradient norms", "grad_norm/", "norm before clipping"),
    ("Learning rates", "lr/", "learning rate"),
)
