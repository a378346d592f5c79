"""What a study of parameter sharing and mixed precision found on A100s, and whether prediction finds it.

In: parameters. Out: the study of its six models, and `Finding` records. Every model runs at its own default
size and at the default batch of a study: nothing here was chosen to meet a finding.

References
----------
.. [1] Energy-Aware Deep Learning on GPUs through Parameter Sharing and Mixed Precision Training, SBAC-PADW
   2025, doi 10.1109/sbac-padw69789.2025.00024.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from joulecast.explore.study import (
    SHARED_BY_CARD,
    Gain,
    Progress,
    Sharing,
    Study,
    StudyPlan,
    gains,
    sharing,
    study,
)
from joulecast.model.parameters import ParameterSet
from joulecast.results import MemoryVerdict, Origin, Quantity, weakest

CNNS: Final = ("resnet50", "vgg16")
TRANSFORMERS: Final = ("bert-base", "distilbert", "albert", "tinyllama")

PLAN: Final = StudyPlan(
    models=(*CNNS, *TRANSFORMERS),
    gpu="a100-sxm4-40gb",
    n_gpus=(1, 4),
    precisions=("fp32", "tf32", "bf16"),
)
#: The CNNs without TF32 anywhere.
STRICT_PLAN: Final = StudyPlan(models=CNNS, gpu=PLAN.gpu, precisions=("fp32-strict", "bf16"))


class Verdict(StrEnum):
    """Whether a prediction agrees with a finding."""

    REPRODUCED = "reproduced"
    IN_PART = "reproduced in part"
    NOT_REPRODUCED = "not reproduced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One number of a finding.

    Attributes
    ----------
    label : str
        Of what it is.
    found : Quantity
        Predicted. [1]
    low, high : float
        What agrees with the finding. [1]
    """

    label: str
    found: Quantity
    low: float
    high: float = inf

    @property
    def holds(self) -> bool:
        """Whether the predicted value agrees; its interval is not consulted."""
        return self.low <= self.found.value <= self.high

    @property
    def may_hold(self) -> bool:
        """Whether something in the interval agrees."""
        return self.found.low <= self.high and self.found.high >= self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding of the study, and the predicted numbers that it is judged by.

    Attributes
    ----------
    claim : str
        What was found.
    cases : tuple of Case
    why : str
        What the prediction says about the reason.
    """

    claim: str
    cases: tuple[Case, ...]
    why: str

    @property
    def verdict(self) -> Verdict:
        """All cases hold, some do, or none does."""
        held = [case.holds for case in self.cases]
        if all(held):
            return Verdict.REPRODUCED
        return Verdict.IN_PART if any(held) else Verdict.NOT_REPRODUCED


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStudy:
    """The study's models as predicted.

    Attributes
    ----------
    main, strict : Study
        `PLAN` and `STRICT_PLAN`.
    """

    main: Study
    strict: Study


def published_study(*, parameters: ParameterSet | None = None, progress: Progress = iter) -> PublishedStudy:
    """Predict the study's six models."""
    return PublishedStudy(
        main=study(PLAN, parameters=parameters, progress=progress),
        strict=study(STRICT_PLAN, parameters=parameters, progress=progress),
    )


def findings(found: PublishedStudy) -> tuple[Finding, ...]:
    """Return every finding, judged."""
    return (
        _slower(found.main),
        _memory(found.main),
        _fewer_parameters(found.main),
        _mean_gain(found.main),
        _order_of_gains(found.main),
        _tf32_baseline(found),
        _samples_per_joule(found.main),
    )


# --- parameter sharing ----------------------------------------------------------------------------


def _by_label(found: Study, precision: str | None = None) -> dict[str, Sharing]:
    return {found.labels[row.model]: row for row in sharing(found, precision)}


def _canonical(found: Study) -> dict[str, str]:
    return {label: model for model, label in found.labels.items()}


def _share_of_kind(found: Study, label: str, precision: str, kind: str) -> float:
    """Return the share of the step that operators of a kind take. [1]."""
    parts = found.anatomies[_canonical(found)[label], precision]
    return float(parts.time_s[parts.kind == kind].sum()) / parts.step_time_s


def _slower(found: Study) -> Finding:
    names = _canonical(found)
    cases = []
    for n_gpus in found.plan.n_gpus:
        for precision in found.plan.precisions:
            albert, distilbert = (
                found.point(names[label], precision, n_gpus) for label in ("albert", "distilbert")
            )
            ratio = albert.step_time_s.over(distilbert.step_time_s)
            cases.append(Case(label=_where(precision, n_gpus), found=ratio, low=1.8, high=2.2))
    shares = [100 * _share_of_kind(found, label, "bf16", "elementwise") for label in ("albert", "distilbert")]
    return Finding(
        claim="ALBERT is up to 2.2 times slower than DistilBERT (judged: 1.8 to 2.2 in each precision)",
        cases=tuple(cases),
        why=(
            "ALBERT runs its one layer twelve times, DistilBERT six layers once: twice the products. Its "
            "activation, gelu_new, is eight elementwise kernels where DistilBERT's is one, and autocast "
            "keeps its power, and so all of them, in FP32: what products save with TF32 and BF16, these do "
            f"not. Elementwise kernels take {shares[0]:.0f} % of ALBERT's BF16 step on one GPU and "
            f"{shares[1]:.0f} % of DistilBERT's. Where a step waits for the host, the number of kernels "
            "decides, and ALBERT has more than twice as many."
        ),
    )


def _where(precision: str, n_gpus: int) -> str:
    return f"{precision}, {n_gpus} GPU{'s' if n_gpus > 1 else ''}"


def _memory(found: Study) -> Finding:
    names = _canonical(found)
    best: tuple[float, Quantity] | None = None
    baseline = found.plan.precisions[0]
    curves = (found.curve(found.batch_curve, names[label], baseline) for label in ("albert", "distilbert"))
    for albert, distilbert in zip(*curves, strict=True):
        if albert.memory_verdict is MemoryVerdict.DOES_NOT_FIT:
            continue
        ratio = albert.allocated_bytes.over(distilbert.allocated_bytes)
        if best is None or ratio.value > best[1].value:
            best = albert.batch_per_gpu, ratio
    assert best is not None, "the study's own batch fits"
    own = _by_label(found)
    usual = own["albert"].prediction.allocated_bytes.over(own["distilbert"].prediction.allocated_bytes)
    return Finding(
        claim="ALBERT needs up to about 3 times the memory of DistilBERT (judged: the most is 2.5 to 3.5)",
        cases=(Case(label=f"{baseline}, batch {best[0]:.0f}, the most", found=best[1], low=2.5, high=3.5),),
        why=(
            "Peak allocation. Parameters, gradients and optimizer state are smaller in ALBERT and do not "
            "grow with the batch; activations are kept for every use of the shared layer, and do. So the "
            f"ratio hangs on the batch: {usual.value:.2f} at the study's own, "
            f"{own['albert'].prediction.batch_per_gpu:.0f}."
        ),
    )


def _fewer_parameters(found: Study) -> Finding:
    rows = _by_label(found)
    albert, distilbert, bert = (rows[label] for label in ("albert", "distilbert", "bert-base"))
    energy = albert.prediction.energy_per_sample_j.over(distilbert.prediction.energy_per_sample_j)
    return Finding(
        claim="ALBERT has fewer parameters and still takes more energy: its shared layer is unrolled",
        cases=(
            Case(
                label="parameters, ALBERT / DistilBERT",
                found=_exact(albert.n_parameters / distilbert.n_parameters),
                low=0.0,
                high=1.0,
            ),
            Case(
                label="work per sample, ALBERT / BERT-base",
                found=_exact(albert.flop_per_sample / bert.flop_per_sample),
                low=0.9,
                high=1.1,
            ),
            Case(label="energy per sample, ALBERT / DistilBERT", found=energy, low=1.0),
        ),
        why=(
            f"One forward pass uses ALBERT's parameter tensors {albert.n_shared_uses} times beyond their "
            "first uses. Sharing them saves storage, not work: it computes what a BERT of twelve layers "
            "computes."
        ),
    )


def _exact(value: float) -> Quantity:
    return Quantity(value=value, low=value, high=value, origin=Origin.DATASHEET)


# --- precision ------------------------------------------------------------------------------------


def _bf16(found: Study, n_gpus: int | None = None) -> list[Gain]:
    n = found.plan.n_gpus[0] if n_gpus is None else n_gpus
    return [gain for gain in gains(found) if gain.precision == "bf16" and gain.n_gpus == n]


def mean_ratio(ratios: Sequence[Quantity]) -> Quantity:
    """Return the arithmetic mean of ratios whose errors go together: what is wrong with one is with all."""
    n = len(ratios)
    return Quantity(
        value=sum(ratio.value for ratio in ratios) / n,
        low=sum(ratio.low for ratio in ratios) / n,
        high=sum(ratio.high for ratio in ratios) / n,
        origin=weakest(*(ratio.origin for ratio in ratios)),
    )


def mean_gain_by_batch(found: Study) -> dict[float, Quantity]:
    """Return the mean speed-up of BF16 by batch over the study's own, where every model fits. [1]."""
    curves: dict[float, list[Quantity]] = {}
    baseline = found.plan.precisions[0]
    for model in found.models:
        own = found.point(model, baseline).batch_per_gpu
        pairs = (found.curve(found.batch_curve, model, precision) for precision in (baseline, "bf16"))
        for before, after in zip(*pairs, strict=True):
            if before.memory_verdict is not MemoryVerdict.DOES_NOT_FIT:
                ratio = before.step_time_s.over(after.step_time_s, SHARED_BY_CARD)
                curves.setdefault(before.batch_per_gpu / own, []).append(ratio)
    whole = {scale: ratios for scale, ratios in curves.items() if len(ratios) == len(found.models)}
    return {scale: mean_ratio(whole[scale]) for scale in sorted(whole)}


def _mean_gain(found: Study) -> Finding:
    cases = [
        Case(
            label=f"mean of six, {n_gpus} GPU{'s' if n_gpus > 1 else ''}",
            found=mean_ratio([gain.time_ratio for gain in _bf16(found, n_gpus)]),
            low=1.8,
            high=2.4,
        )
        for n_gpus in found.plan.n_gpus
    ]
    ends = _bf16(found)
    best, least = max(ends, key=lambda g: g.time_ratio.value), min(ends, key=lambda g: g.time_ratio.value)
    hosts = [f"{found.labels[gain.model]} {100 * gain.share['host']:.0f} %" for gain in ends if gain.share]
    by_batch = [f"{scale:g} x: {mean.value:.2f}" for scale, mean in mean_gain_by_batch(found).items()]
    return Finding(
        claim="Mixed BF16 is about 2.1 times faster than FP32 on average (judged: 1.8 to 2.4)",
        cases=tuple(cases),
        why=(
            f"From {found.labels[least.model]}, {least.time_ratio.value:.2f} times, to "
            f"{found.labels[best.model]}, {best.time_ratio.value:.2f} times, on one GPU. The mean hangs on "
            "the batch: where kernels are short the host dispatches slower than the GPU computes, and a "
            f"faster precision gains nothing. The BF16 step waits for the host: {', '.join(hosts)}. The mean "
            f"by batch relative to the study's, where all six fit: {', '.join(by_batch)}. The batches of the "
            "published study are not known to us."
        ),
    )


def _order_of_gains(found: Study) -> Finding:
    by_label = {found.labels[gain.model]: gain.time_ratio for gain in _bf16(found)}
    others = {label: ratio for label, ratio in by_label.items() if label != "tinyllama"}
    second = max(others, key=lambda label: others[label].value)
    cnn = max(CNNS, key=lambda label: by_label[label].value)
    transformer = min(TRANSFORMERS, key=lambda label: by_label[label].value)
    return Finding(
        claim="The gain depends on the model: TinyLlama's is the highest, the CNNs' the lowest",
        cases=(
            Case(
                label=f"TinyLlama's gain / the next ({second})",
                found=by_label["tinyllama"].over(by_label[second]),
                low=1.0,
            ),
            Case(
                label=f"the lowest of the Transformers ({transformer}) / the highest of the CNNs ({cnn})",
                found=by_label[transformer].over(by_label[cnn]),
                low=1.0,
            ),
        ),
        why=(
            "TinyLlama's products are the largest: they fill the tensor cores, and the host keeps ahead of "
            "them. CNNs start from convolutions that are in TF32 already, and their norms and activations "
            "are bound by memory in every precision."
        ),
    )


def _tf32_baseline(found: PublishedStudy) -> Finding:
    cases, shares = [], []
    for label in CNNS:
        plain, strict = (
            next(gain for gain in _bf16(one) if one.labels[gain.model] == label)
            for one in (found.main, found.strict)
        )
        ratio = strict.time_ratio.over(plain.time_ratio, SHARED_BY_CARD)
        cases.append(Case(label=f"{label}: gain over fp32-strict / gain over fp32", found=ratio, low=1.3))
        before = plain.baseline_share or {}
        shares.append(f"{label} {100 * before.get('tf32_tensor', 0.0):.0f} %")
        tf32 = next(g for g in gains(found.main) if (g.model, g.precision) == (plain.model, "tf32"))
        cases.append(Case(label=f"{label}: tf32 over fp32", found=tf32.time_ratio, low=0.95, high=1.1))
    return Finding(
        claim="CNNs gain little because their FP32 already uses TF32 inside cuDNN",
        cases=tuple(cases),
        why=(
            "PyTorch lets cuDNN's convolutions use TF32 by default and matrix products not, so a CNN's fp32 "
            f"and tf32 are nearly one step. TF32 tensor cores bound {', '.join(shares)} of the fp32 step. "
            "fp32-strict forbids them."
        ),
    )


def _samples_per_joule(found: Study) -> Finding:
    falls = []
    for gain in _bf16(found):
        before, after = (found.point(gain.model, precision) for precision in (gain.baseline, "bf16"))
        falls.append(
            f"{found.labels[gain.model]} {before.mean_power_w.value:.0f} to {after.mean_power_w.value:.0f} W"
        )
    return Finding(
        claim="Judged by samples per joule, BF16 beats FP32 for every model",
        cases=tuple(
            Case(label=found.labels[gain.model], found=gain.energy_ratio, low=1.0) for gain in _bf16(found)
        ),
        why=(
            "A product on BF16 tensor cores takes a fraction of the energy of one on the vector units, "
            "16-bit tensors move half the bytes, and a shorter step pays the card's static power for less "
            f"long. Mean power, fp32 to bf16: {', '.join(falls)}."
        ),
    )
