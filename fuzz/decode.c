/* fuzz/decode.c -- decodes graphs from arbitrary bytes, and runs them.
 *
 * A graph that was decoded must print, and its encoded bytes must decode to the same bytes
 * again. It is specialised, planned and, if it is small, run. The optimised program must give
 * the same results as a program that runs call by call. Inputs come from three mutators.
 * libFuzzer's mutator changes bytes, decode/alter.c changes a field of the message, and
 * decode/grow.c adds a call that the shape rule of an op accepts. With the last, random input
 * passes the checks and tests every op with unusual attributes.
 *
 * covers: src/graph/decode.c src/graph/decode_part.c
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/log.h"
#include "decode/decode.h"
#include "graph/graph.pb-c.h"
#include "graph/program.h"

enum { SMALL_BYTES = 1 << 16 }; /* most bytes of a graph that is run */

/* ---- decoding and encoding ---- */

static void check_print(const ch_graph *g)
{
    int   n = ch_graph_print(g, NULL, 0);
    char *text = malloc((size_t)n + 1);

    MUST(ch_graph_print(g, text, (size_t)n + 1) == n);
    MUST(strlen(text) == (size_t)n);
    free(text);
}

static void check_encode(const ch_graph *g)
{
    void     *bytes = NULL, *again = NULL;
    size_t    n = 0, m = 0;
    ch_graph *back = NULL;

    MUST(ch_graph_encode(g, &bytes, &n) == CH_OK);
    MUST(ch_graph_decode(bytes, n, &back) == CH_OK);
    MUST(ch_graph_encode(back, &again, &m) == CH_OK);
    MUST(n == m && memcmp(bytes, again, n) == 0);
    ch_graph_unref(back);
    ch_bytes_free(bytes);
    ch_bytes_free(again);
}

/* ---- running ---- */

static bool has_body(const ch_graph *g)
{
    for (const ch_node *n = g->first; n != NULL; n = n->next)
        for (const ch_attr *row = n->op->attrs; row != NULL && row->name != NULL; row++)
            if (row->kind == CH_ATTR_KIND_GRAPH)
                return true;
    return false;
}

/* A program and the memory of its inputs, outputs and variables, in this order. */
typedef struct bound {
    ch_program *p;
    int         n;
    int64_t    *bytes;
    void      **at;
    char       *memory;
    ch_status   rc;
} bound;

static const ch_graph *graph_of(const bound *b)
{
    return b->p->graph;
}

static bool is_small(bound *b)
{
    const ch_graph *g = graph_of(b);
    size_t          room = b->p->arena_bytes;
    int             n = 0;

    for (int i = 0; i < g->n_inputs; i++)
        b->bytes[n++] = ch__bytes(g->input[i]);
    for (int i = 0; i < g->n_outputs; i++)
        b->bytes[n++] = ch__bytes(g->output[i].node);
    for (int i = 0; i < g->n_resources; i++)
        b->bytes[n++] = ch_shape_count(g->resource[i].shape) *
                        (int64_t)ch_dtype_bytes(g->resource[i].dtype);
    for (int i = 0; i < n && room <= SMALL_BYTES; i++)
        room += b->bytes[i] <= SMALL_BYTES ? (size_t)b->bytes[i] + CH_ALIGN : SMALL_BYTES + 1;
    if (room > SMALL_BYTES)
        return false;
    b->n = n;
    b->memory = ch__alloc_aligned(room);
    return b->memory != NULL;
}

/* Stores numbers from -1 to 3: some are equal, some are zero, and -1 is not an id. */
static void fill(ch_dtype dtype, int64_t bytes, char *at)
{
    static const ch_str word[] = {{"", 0}, {"x", 1}, {"word", 4}};
    const int64_t       size = (int64_t)ch_dtype_bytes(dtype);

    for (int64_t i = 0; dtype == CH_STR && i < bytes / size; i++)
        ((ch_str *)(void *)at)[i] = word[i % 3];
    for (int64_t i = 0; dtype != CH_STR && i < bytes / size; i++)
        ch__store(dtype, at + i * size, (double)(i * 7 % 5) - 1);
}

static void place(bound *b)
{
    const ch_graph *g = graph_of(b);
    char           *next = b->memory + b->p->arena_bytes;

    for (int i = 0; i < b->n; i++) {
        int r = i - g->n_inputs - g->n_outputs;

        b->at[i] = next;
        if (i < g->n_inputs)
            fill(g->input[i]->dtype, b->bytes[i], next);
        else if (r >= 0)
            fill(g->resource[r].dtype, b->bytes[i], next);
        next += (b->bytes[i] + CH_ALIGN - 1) / CH_ALIGN * CH_ALIGN;
    }
}

static bool run(bound *b)
{
    const ch_graph *g = graph_of(b);
    size_t          n = (size_t)(g->n_inputs + g->n_outputs + g->n_resources) + 1;
    ch_env          env = {.n_replicas = 1, .step = 3, .global_rows = 2};
    ch_instance    *x = NULL;
    ch_bind         bind = {.env = &env, .arena_generation = 1};

    b->bytes = calloc(n, sizeof(*b->bytes));
    b->at = calloc(n, sizeof(*b->at));
    if (!is_small(b) || ch__instance_new(b->p, &x) != CH_OK)
        return false;
    place(b);
    bind.arena = b->memory;
    bind.input = (const void *const *)b->at;
    bind.output = b->at + g->n_inputs;
    bind.resource = b->at + g->n_inputs + g->n_outputs;
    b->rc = ch__instance_run(x, &bind);
    ch__instance_free(x);
    return true;
}

static void drop(bound *b)
{
    free(b->bytes);
    free(b->at);
    ch__free_aligned(b->memory);
    ch__program_unref(b->p);
}

/* Returns true if the bits are equal, or both numbers are NaN. */
static bool is_same(ch_dtype dtype, int64_t bytes, const char *a, const char *b)
{
    const size_t size = ch_dtype_bytes(dtype);

    for (size_t i = 0; i < (size_t)bytes; i += size)
        if (memcmp(a + i, b + i, size) != 0 &&
            !(ch_dtype_is_float(dtype) && isnan(ch__load(dtype, a + i)) &&
              isnan(ch__load(dtype, b + i))))
            return false;
    return true;
}

static void check_same(const bound *quick, const bound *slow)
{
    const ch_graph *g = graph_of(slow);

    MUST(quick->rc == CH_OK || slow->rc != CH_OK); /* slow also runs unused calls */
    for (int i = g->n_inputs; slow->rc == CH_OK && i < slow->n; i++) {
        int      r = i - g->n_inputs - g->n_outputs;
        ch_dtype dtype = r >= 0 ? g->resource[r].dtype : g->output[i - g->n_inputs].node->dtype;

        MUST(is_same(dtype, slow->bytes[i], quick->at[i], slow->at[i]));
    }
}

/* Replaces symbols by 0, 2, 4 or 6: equal symbols get equal sizes, and none is 1. */
static bool shape_of(const ch_dims *d, ch_shape *out)
{
    *out = (ch_shape){.rank = d->rank};
    for (int i = 0; i < d->rank; i++) {
        out->dim[i] = d->dim[i].n;
        if (d->dim[i].sym != 0 &&
            !ch__mul_size(d->dim[i].n, 2 * (d->dim[i].sym % 4), &out->dim[i]))
            return false;
    }
    return true;
}

static bool plan(const ch_graph *g, const ch_plan_options *opt, bound *out)
{
    ch_shape       *shape = calloc((size_t)g->n_inputs + 1, sizeof(*shape));
    const ch_shape *each = shape;
    int             variant = 0;
    ch_signature sig = {.n_replicas = 1, .n_variants = 1, .variant = &variant, .shape = &each};
    ch_graph    *numbers = NULL;
    char         text[256];
    bool         ok = true;

    for (int i = 0; i < g->n_inputs && ok; i++)
        ok = shape_of(&g->input[i]->dims, &shape[i]);
    ok = ok && ch__specialise(g, &sig, &numbers) == CH_OK &&
         ch__program_new(numbers, opt, &out->p) == CH_OK;
    if (ok)
        ch__program_print(out->p, text, sizeof(text));
    ch_graph_unref(numbers);
    free(shape);
    return ok;
}

/* Compares the optimised program (folded, fused, in place, memory reused) with call by call. */
static void check_programs(const ch_graph *g)
{
    bound quick = {0}, slow = {0};

    /* A loop may never end, so graphs with bodies are planned but not run. */
    if (plan(g, &(ch_plan_options){.threads = 1}, &quick) && !has_body(g) && run(&quick) &&
        plan(g, &(ch_plan_options){.keep_all = true, .threads = 1}, &slow) && run(&slow))
        check_same(&quick, &slow);
    drop(&quick);
    drop(&slow);
}

static void no_log(const ch_log_record *record, void *arg)
{
    (void)record, (void)arg;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    ch_log_set_sink(no_log, NULL, CH_LOG_ERROR);
    ch_device_current(); /* creates the devices */
    (void)argc, (void)argv;
    return 0;
}

/* Returns a hash of the input. It selects the inputs that get checks beyond decoding, which are
 * slow. */
static unsigned hash(const uint8_t *data, size_t size)
{
    unsigned h = 2166136261u;

    for (size_t i = 0; i < size; i++)
        h = (h ^ data[i]) * 16777619u;
    return h >> 8;
}

/* Repeats the call with an allocation that fails. */
static void check_memory(const uint8_t *data, size_t size, unsigned which)
{
    ch_graph *g = NULL;

    ch__mem_fail_at(1 + which % 64);
    if (ch_graph_decode(data, size, &g) == CH_OK)
        ch_graph_unref(g);
    ch__mem_fail_at(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t   live = ch__mem_live();
    unsigned  h = hash(data, size);
    ch_graph *g = NULL;

    if (h % 8 == 0)
        check_memory(data, size, h / 8);
    if (ch_graph_decode(data, size, &g) == CH_OK) {
        if (h % 4 == 1) {
            check_print(g);
            check_encode(g);
        }
        if (h % 64 == 2)
            check_programs(g);
        ch_graph_unref(g);
    }
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice   d = {seed};
    size_t n = 0;

    switch (roll(&d, 4)) {
    case 0:
        break;
    case 1:
        n = alter(&d, &cohort__graph__descriptor, data, size, max_size);
        break;
    default:
        n = grow(&d, data, size, max_size);
    }
    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
