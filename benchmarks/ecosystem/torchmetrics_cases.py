# /// script
# dependencies = ["torchmetrics==1.9.0", "numpy", "scipy"]
# ///
"""torchmetrics: metrics of classification, regression, retrieval, images, text and audio."""

import torch
import torchmetrics as tm
from _cases import case, main
from torchmetrics import functional as F


@case
def classification():
    p, y = torch.randn(64, 5).softmax(1), torch.randint(5, (64,))
    kinds = {"num_classes": 5}
    found = tm.MetricCollection(
        [
            tm.classification.MulticlassAccuracy(**kinds),
            tm.classification.MulticlassF1Score(**kinds, average=None),
            tm.classification.MulticlassAUROC(**kinds),
            tm.classification.MulticlassAveragePrecision(**kinds),
            tm.classification.MulticlassConfusionMatrix(**kinds, normalize="true"),
            tm.classification.MulticlassCohenKappa(**kinds),
            tm.classification.MulticlassMatthewsCorrCoef(**kinds),
            tm.classification.MulticlassCalibrationError(**kinds),
            tm.classification.MulticlassSpecificity(**kinds),
        ]
    )
    for half in (slice(0, 32), slice(32, 64)):
        found.update(p[half], y[half])
    return found.compute()


@case
def binary_and_multilabel():
    p, y = torch.rand(100), torch.randint(2, (100,))
    curves = [
        F.classification.binary_precision_recall_curve(p, y),
        F.classification.binary_roc(p, y, thresholds=7),
    ]
    many = F.classification.multilabel_ranking_loss(torch.rand(20, 4), torch.randint(2, (20, 4)), 4)
    hinge = F.classification.binary_hinge_loss(p, y)
    return (
        curves,
        many,
        hinge,
        F.classification.binary_jaccard_index(p, y),
        F.classification.binary_stat_scores(p, y),
    )


@case
def regression():
    a, b = torch.rand(50) + 0.1, torch.rand(50) + 0.1
    names = (
        "MeanSquaredError",
        "MeanAbsoluteError",
        "R2Score",
        "PearsonCorrCoef",
        "SpearmanCorrCoef",
        "ExplainedVariance",
        "KendallRankCorrCoef",
        "TweedieDevianceScore",
        "ConcordanceCorrCoef",
        "LogCoshError",
    )
    found = {}
    for name in names:
        metric = getattr(tm, name, None) or getattr(tm.regression, name)
        found[name] = (metric := metric())(a, b)
        metric.reset()
    return found, F.pairwise_cosine_similarity(a.view(5, 10)), F.pairwise_euclidean_distance(b.view(5, 10))


@case
def retrieval_and_aggregation():
    which, p, y = torch.arange(40) // 8, torch.rand(40), torch.randint(2, (40,))
    names = (
        "RetrievalMAP",
        "RetrievalMRR",
        "RetrievalNormalizedDCG",
        "RetrievalPrecision",
        "RetrievalRecall",
    )
    found = {name: getattr(tm.retrieval, name)()(p, y, indexes=which) for name in names}
    mean, most, running = tm.MeanMetric(), tm.MaxMetric(), tm.RunningMean(window=3)
    for value in p:
        mean.update(value, weight=2.0), most.update(value), running.update(value)
    return found, mean.compute(), most.compute(), running.compute()


@case
def images():
    a, b = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    return (
        F.structural_similarity_index_measure(a, b, data_range=1.0),
        F.peak_signal_noise_ratio(a, b, data_range=1.0),
        F.total_variation(a),
        F.universal_image_quality_index(a, b),
        F.spectral_angle_mapper(a, b),
        F.error_relative_global_dimensionless_synthesis(a, b),
    )


@case
def text_and_audio():
    said, meant = ["the cat sat on the mat", "hello word"], ["a cat sat on the mat", "hello world"]
    a, b = torch.randn(2, 400), torch.randn(2, 400)
    return (
        F.word_error_rate(said, meant),
        F.char_error_rate(said, meant),
        F.bleu_score(said, [[m] for m in meant]),
        F.text.perplexity(torch.randn(2, 6, 9), torch.randint(9, (2, 6))),
        F.signal_noise_ratio(a, b),
        F.scale_invariant_signal_distortion_ratio(a, b),
        F.permutation_invariant_training(a[None], b[None], F.scale_invariant_signal_noise_ratio)[0],
    )


@case
def state_and_wrappers():
    metric = tm.classification.BinaryAccuracy()
    metric.persistent(True)
    p, y = torch.rand(30), torch.randint(2, (30,))
    metric.update(p, y)
    other = tm.classification.BinaryAccuracy()
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    spread = tm.MinMaxMetric(tm.MeanSquaredError())
    spread(p, p * 2), spread(p, p * 3)
    each = tm.ClasswiseWrapper(tm.classification.MulticlassRecall(3, average=None))
    sum_of = metric + tm.classification.BinaryPrecision()
    sum_of.update(p, y)
    return (
        metric.compute(),
        spread.compute(),
        each(torch.randn(9, 3), torch.arange(9) % 3),
        sum_of.compute(),
        metric.tp,
    )


if __name__ == "__main__":
    main()
