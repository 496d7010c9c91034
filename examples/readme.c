/* examples/readme.c -- the smallest program: a line is fitted, a step at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
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
}

int main(void)
{
    const float xs[] = {1, 0, 0, 1, 1, 1, 2, 1}, ys[] = {2, -1, 1, 3}; /* w is (2, -1) */
    static ch_strategy *st; /* static: what is not given back ends with the process */
    static ch_tensor   *t[3];
    static ch_var      *w;
    static ch_function *f;
    static ch_tuple    *batch;
    static char         text[80];

    if (ch_strategy_mirrored(NULL, &st) != CH_OK || /* every core: this line is the choice */
        ch_tensor_copy_of(CH_F32, ch_shape_of(4, 2), xs, &t[0]) != CH_OK ||
        ch_tensor_copy_of(CH_F32, ch_shape_of(4, 1), ys, &t[1]) != CH_OK ||
        ch_tuple_of(2, t, &batch) != CH_OK ||
        ch_var_new(st, &(ch_var_spec){.name = "w", .shape = ch_shape_of(2, 1)}, &w) != CH_OK ||
        ch_function_new("train", train, w, &f) != CH_OK)
        return fprintf(stderr, "%s\n", ch_error_message()), 1;
    for (int i = 0; i < 100; i++)
        if (ch_strategy_run(st, f, batch, NULL) != CH_OK)
            return fprintf(stderr, "%s\n", ch_error_message()), 1;
    if (ch_var_get(w, &t[2]) == CH_OK && ch_tensor_print(t[2], text, sizeof(text)) > 0)
        puts(text);
    return 0;
}
