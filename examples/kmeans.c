/* examples/kmeans.c -- k-means over all replicas: all-reduce, all-gather, broadcast.
 *
 *     ./kmeans [short]
 *
 * Each replica has its own points, which are not exchanged. The replicas exchange only sums:
 * for each centre, the sum of the points that are nearest to it, and the number of these
 * points.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { CENTRES = 4, REPLICAS = 3, POINTS = 400 };

/* Returns the squared distances (n, k) between points (n, 2) and centres (k, 2). */
static ch_node *distances(ch_node *x, ch_node *centre)
{
    ch_node *apart = ch_sub(ch_expand_dims(x, 1), ch_expand_dims(centre, 0));

    return ch_sum(ch_square(apart), 1, (int[]){-1}, false);
}

/* Sets the centres to the first points of replica 0, with a broadcast. */
static void begin(ch_step *s, void *centre)
{
    ch_node *some = ch_gather(ch_step_in(s, 0), ch_range(s, CH_I32, 0, CENTRES, 1), 0);

    ch_var_assign(s, centre, ch_broadcast(some));
}

static void improve(ch_step *s, void *centre)
{
    ch_node *x = ch_step_in(s, 0), *far = distances(x, ch_var_read(s, centre));
    ch_node *nearest = ch_argmin(far, -1);
    ch_node *mine[] = {ch_segment_sum(x, nearest, CENTRES),
                       ch_segment_sum(ch_ones_like(nearest), nearest, CENTRES),
                       ch_sum_all(ch_min(far, 1, (int[]){-1}, false))};
    ch_node *all[3], *n; /* equal on all replicas, so they may be assigned */

    ch_all_reduce_all(CH_SUM, 3, mine, all); /* a single collective for all three */
    n = ch_expand_dims(ch_cast(ch_maximum(all[1], ch_number(s, 1)), CH_F32), 1);
    ch_var_assign(s, centre, ch_div(all[0], n));
    ch_step_out(s, "error", ch_div(all[2], ch_step_global_rows(s)));
    /* A row for each replica: the number of its points at each centre. */
    ch_step_out(s, "counts", ch_all_gather(ch_expand_dims(mine[1], 0), 0));
}

/* Makes the points of a replica, around four centres. Replica 2 has twice as many points. */
static ch_status make_replica(const ch_value_context *c, void *arg, ch_tuple **out)
{
    int        n = c->replica == 2 ? 2 * POINTS : POINTS;
    ch_tensor *t = NULL;

    (void)arg;
    must(ch_tensor_new(CH_F32, ch_shape_of(n, 2), &t));
    for (int i = 0; i < n; i++) {
        float *p = (float *)ch_tensor_data_mut(t) + 2 * i;

        p[0] = (i % 2 == 0 ? 0.0f : 1.0f) + between(-0.2f, 0.2f);
        p[1] = (i % 4 < 2 ? 0.0f : 1.0f) + between(-0.2f, 0.2f);
    }
    *out = batch_of(1, &t);
    return CH_OK;
}

int main(int argc, char **argv)
{
    ch_strategy *st = NULL;
    ch_var      *centre = NULL;
    ch_function *first = NULL, *step = NULL;
    ch_tuple    *points = NULL, *out = NULL;
    ch_tensor   *t = NULL;
    double       error = 0;
    char         text[1024];

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=3"})); /* three replicas */
    must(ch_strategy_mirrored(NULL, &st));
    must(ch_var_new(st, &(ch_var_spec){"centre", .shape = ch_shape_of(CENTRES, 2)}, &centre));
    must(ch_function_new("begin", begin, centre, &first));
    must(ch_function_new("improve", improve, centre, &step));
    must(ch_strategy_distribute_values_from_function(st, make_replica, NULL, &points));
    must(ch_strategy_run(st, first, points, NULL));
    for (int i = 1; i <= (is_short(argc, argv) ? 5 : 20); i++) {
        ch_tuple_unref(out);
        must(ch_strategy_run(st, step, points, &out));
        error = number_of(out, "error");
        printf("step %2d  mean squared distance %.5f\n", i, error);
    }
    must(ch_var_get(centre, &t));
    ch_tensor_print(t, text, sizeof(text));
    printf("centres %s\n", text);
    ch_tensor_print(ch_value_at(ch_tuple_get(out, "counts"), 0), text, sizeof(text));
    printf("points at each centre (a row for each replica): %s\n", text);
    ch_tensor_unref(t);
    ch_tuple_unref(out);
    ch_tuple_unref(points);
    ch_function_unref(first);
    ch_function_unref(step);
    ch_var_unref(centre);
    ch_strategy_unref(st);
    return error < 0.05 ? 0 : 1;
}
