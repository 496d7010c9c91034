/* bench/spmd_bytes.c -- the bytes that four cores of a replica receive from each other in a
 * step, as the kernels count them; with two replicas, also those that the replicas exchange.
 *
 * The limit of a row is derived by hand from the layouts (test/spmd/examples.h): it is the
 * smallest number of bytes with which the cores can compute the step as it is split. So every
 * ratio must be 1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../test/spmd/examples.h"
#include "bench.h"
#include "logical.h"

enum { FOUR = 4 };

static void measure(bench *b, const divided_step *e)
{
    cores            four = {.n = FOUR, .n_replicas = e->n_replicas};
    recording        x = {.e = e};
    ch_strategy     *st;
    ch_function     *f = NULL;
    ch_tensor       *in[MOST_INPUTS] = {NULL};
    ch_tuple        *batch = NULL;
    ch_layout_report moved;

    for (int i = 0; i < 2 * FOUR; i++)
        four.device[i] = ch_device_at(i);
    st = cores_strategy(&four, e->mesh[0] > 0 ? 2 : 0, e->mesh);
    must(new_variables(st, &x));
    for (; x.n_in < MOST_INPUTS && e->in[x.n_in].shape.rank > 0; x.n_in++)
        must(ch_tensor_new(e->in[x.n_in].dtype, e->in[x.n_in].shape, &in[x.n_in]));
    must(ch_tuple_of(x.n_in, in, &batch));
    must(ch_function_new(e->name, record_divided_step, &x, &f));
    ch_function_static_rows(f);
    must(ch_strategy_run(st, f, batch, NULL));
    must(ch_function_report_layouts(f, NULL, &moved));
    bench_add(b, e->name, "B", BENCH_LOWER, (double)bytes_of(&moved), (double)e->bytes);
    if (bytes_of(&moved) != e->bytes)
        bench_void(b, e->name, "the cores moved another number of bytes");
    ch_function_unref(f);
    ch_tuple_unref(batch);
    for (int i = 0; i < x.n_in; i++)
        ch_tensor_unref(in[i]);
    for (int i = 0; i < x.n_vars; i++)
        ch_var_unref(x.v[i]);
    ch_strategy_unref(st);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("spmd-bytes", argc, argv);

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=8", .threads = 1}));
    for (int i = 0; i < DIVIDED_STEPS; i++)
        if (bench_wants(b, divided_steps[i].name))
            measure(b, &divided_steps[i]);
    return bench_close(b);
}
