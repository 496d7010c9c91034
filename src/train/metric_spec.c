/* train/metric_spec.c -- metrics to be made, for lists of them.   SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/fault.h"
#include "cohort/metric.h"

/* A metric without a number. */
#define PLAIN(spec_, metric_)                                                                  \
    static ch_status make_##spec_(ch_strategy *st, const char *name, double number,            \
                                  ch_metric **out)                                             \
    {                                                                                          \
        (void)number;                                                                          \
        return metric_(st, name, out);                                                         \
    }                                                                                          \
    ch_metric_spec ch_##spec_(void)                                                            \
    {                                                                                          \
        return (ch_metric_spec){.make = make_##spec_};                                         \
    }

/* A metric with a number of this type. */
#define NUMBERED(spec_, metric_, type_)                                                        \
    static ch_status make_##spec_(ch_strategy *st, const char *name, double number,            \
                                  ch_metric **out)                                             \
    {                                                                                          \
        return metric_(st, name, (type_)number, out);                                          \
    }                                                                                          \
    ch_metric_spec ch_##spec_(type_ number)                                                    \
    {                                                                                          \
        return (ch_metric_spec){.number = (double)number, .make = make_##spec_};               \
    }

PLAIN(accuracy, ch_metric_accuracy)
PLAIN(sparse_accuracy, ch_metric_sparse_accuracy)
PLAIN(categorical_accuracy, ch_metric_categorical_accuracy)
NUMBERED(binary_accuracy, ch_metric_binary_accuracy, double)
NUMBERED(top_k_accuracy, ch_metric_top_k, int)
NUMBERED(precision, ch_metric_precision, double)
NUMBERED(recall, ch_metric_recall, double)
NUMBERED(f1, ch_metric_f1, double)
NUMBERED(auc, ch_metric_auc, int)
NUMBERED(auc_exact, ch_metric_auc_exact, int64_t)
PLAIN(mse, ch_metric_mse)
PLAIN(mae, ch_metric_mae)
PLAIN(rmse, ch_metric_rmse)
PLAIN(sparse_cross_entropy, ch_metric_sparse_cross_entropy)
PLAIN(categorical_cross_entropy, ch_metric_categorical_cross_entropy)
PLAIN(binary_cross_entropy, ch_metric_binary_cross_entropy)
NUMBERED(confusion, ch_metric_confusion, int)

ch_metric_spec ch_metric_named(ch_metric_spec spec, const char *name)
{
    spec.name = name;
    return spec;
}

ch_status ch_metric_new(ch_strategy *st, ch_metric_spec spec, ch_metric **out)
{
    ch_status rc = ch__want_given("metric new", "out", out, NULL, NULL);

    if (rc == CH_OK && spec.make == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "metric new: the spec is zero; give one such as ch_auc(0)");
    return rc == CH_OK ? spec.make(st, spec.name, spec.number, out) : rc;
}
