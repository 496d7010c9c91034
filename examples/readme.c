/* examples/readme.c -- the README's program.   SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cohort/cohort.h"

/* One step of fitting y = x.w by gradient descent. It is run once, to record it. */
static void train(ch_step *s, void *w)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1), *now = ch_var_read(s, w);
    ch_node *error = ch_sub(ch_matmul(x, false, now, false), y);
    ch_node *loss = ch_div(ch_sum_all(ch_square(error)), ch_step_global_rows(s));
    ch_node *slope = ch_all_reduce(CH_SUM, ch_gradient(loss, now));

    ch_var_assign_sub(s, w, ch_mul(ch_number(s, 0.1), slope));
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

int main(void)
{
    const float  xs[] = {1, 0, 0, 1, 1, 1, 2, 1}, ys[] = {2, -1, 1, 3}; /* w is (2, -1) */
    ch_strategy *st = NULL;
    ch_tensor   *x = NULL, *y = NULL, *w0 = NULL, *result = NULL;
    ch_var      *w = NULL;
    ch_function *f = NULL;
    ch_tuple    *batch = NULL;
    char         text[128];
    ch_status    rc;

    if ((rc = ch_strategy_mirrored(NULL, &st)) || /* every core: this line is the choice */
        (rc = ch_tensor_copy_of(CH_F32, ch_shape_of(4, 2), xs, &x)) ||
        (rc = ch_tensor_copy_of(CH_F32, ch_shape_of(4, 1), ys, &y)) ||
        (rc = ch_tensor_new(CH_F32, ch_shape_of(2, 1), &w0)) ||
        (rc = ch_var_new(st, &(ch_var_spec){.name = "w", .initial = w0}, &w)) ||
        (rc = ch_function_new("train", train, w, &f)) ||
        (rc = ch_tuple_of(2, (ch_tensor *[]){x, y}, &batch)))
        goto done;
    for (int i = 0; i < 100 && rc == CH_OK; i++)
        rc = ch_strategy_run(st, f, batch, NULL);
    if (rc != CH_OK || (rc = ch_var_get(w, &result)))
        goto done;
    ch_tensor_print(result, text, sizeof(text));
    printf("w = %s after %d replicas took 100 steps\n", text, ch_strategy_replicas(st));

done:
    if (rc != CH_OK)
        fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    ch_tensor_unref(result);
    ch_tuple_unref(batch);
    ch_function_unref(f);
    ch_var_unref(w);
    ch_tensor_unref(w0);
    ch_tensor_unref(y);
    ch_tensor_unref(x);
    ch_strategy_unref(st);
    return rc != CH_OK;
}
