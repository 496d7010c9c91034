/* test/tools/plugin.c -- a plug-in that uses the library; test_unload.c loads and unloads it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/cohort.h"

__attribute__((visibility("default"))) int plugin_use(void);

static void twice(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

/* Returns 0 if a step on two replicas, which starts threads, gives the expected result. */
int plugin_use(void)
{
    static const float data[] = {1, 2, 3, 4};
    ch_strategy       *st = NULL;
    ch_tensor         *x = NULL;
    ch_function       *f = NULL;
    ch_tuple          *in = NULL, *out = NULL;
    const float       *y = NULL;
    ch_status          rc = ch_strategy_mirrored(NULL, &st);

    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_F32, ch_shape_of(4), data, &x);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &x, &in);
    if (rc == CH_OK)
        rc = ch_function_new("twice", twice, NULL, &f);
    if (rc == CH_OK)
        rc = ch_strategy_run(st, f, in, &out);
    if (rc == CH_OK)
        y = ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0));
    if (rc == CH_OK && (y == NULL || y[0] != 2))
        rc = CH_INTERNAL;
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_tensor_unref(x);
    ch_strategy_unref(st);
    return (int)rc;
}
