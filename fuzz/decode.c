/* fuzz/decode.c -- what ch_graph_decode makes of anything, and what becomes of what it takes.
 *
 * A graph that was decoded must print, encode to bytes that decode to the same bytes again, and
 * be specialised, planned and (if it is small) run without harm. Inputs come from three
 * mutators: libFuzzer's own on bytes, one that changes a field of the message (decode/alter.c),
 * and one that adds a call which some op's shape rule accepts (decode/grow.c). The last is how
 * random input gets past the checks, and how every op meets attributes that nobody meant.
 *
 * covers: src/graph/decode.c src/graph/encode.c
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/log.h"
#include "decode/decode.h"
#include "graph/program.h"

enum { SMALL_BYTES = 1 << 16 }; /* what a run may touch */

#define MUST(claim) must(claim, #claim, __LINE__)

static void must(bool claim, const char *text, int line)
{
    if (claim)
        return;
    fprintf(stderr, "decode.c:%d: %s does not hold: %s\n", line, text, ch_error_message());
    abort();
}

/* ---- there and back ---- */

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

/* ---- running it ---- */

static bool has_body(const ch_graph *g)
{
    for (const ch_node *n = g->first; n != NULL; n = n->next)
        for (const ch_attr *row = n->op->attrs; row != NULL && row->name != NULL; row++)
            if (row->kind == CH_ATTR_KIND_GRAPH)
                return true;
    return false;
}

/* The bytes of everything that a program is bound to: inputs, outputs, variables. */
static bool is_small(const ch_program *p, int64_t *bytes, size_t *room)
{
    const ch_graph *g = p->graph;
    int             n = 0;

    for (int i = 0; i < g->n_inputs; i++)
        bytes[n++] = ch__bytes(g->input[i]);
    for (int i = 0; i < g->n_outputs; i++)
        bytes[n++] = ch__bytes(g->output[i].node);
    for (int i = 0; i < g->n_resources; i++)
        bytes[n++] = ch_shape_count(g->resource[i].shape) *
                     (int64_t)ch_dtype_bytes(g->resource[i].dtype);
    *room = p->arena_bytes;
    for (int i = 0; i < n && *room <= SMALL_BYTES; i++)
        *room += bytes[i] <= SMALL_BYTES ? (size_t)bytes[i] + CH_ALIGN : SMALL_BYTES + 1;
    return *room <= SMALL_BYTES;
}

/* On memory that holds zeros. */
static void run(ch_program *p)
{
    const ch_graph *g = p->graph;
    int             n = g->n_inputs + g->n_outputs + g->n_resources;
    size_t          room;
    int64_t        *bytes = calloc((size_t)n + 1, sizeof(*bytes));
    void          **at = calloc((size_t)n + 1, sizeof(*at));
    ch_env          env = {.n_replicas = 1, .step = 3, .global_rows = 2};
    ch_instance    *x = NULL;

    if (is_small(p, bytes, &room) && ch__instance_new(p, &x) == CH_OK) {
        char   *memory = ch__alloc_aligned(room), *next = memory + p->arena_bytes;
        ch_bind b = {.env = &env, .arena = memory, .arena_generation = 1};

        for (int i = 0; i < n; next += (bytes[i] + CH_ALIGN - 1) / CH_ALIGN * CH_ALIGN, i++)
            at[i] = next;
        b.input = at;
        b.output = at + g->n_inputs;
        b.resource = at + g->n_inputs + g->n_outputs;
        (void)(ch__instance_run(x, &b) == CH_OK);
        ch__free_aligned(memory);
        ch__instance_free(x);
    }
    free(bytes);
    free(at);
}

/* Every symbol as its number times two: equal ones equal, none of them one. */
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

static void check_program(const ch_graph *g)
{
    ch_shape       *shape = calloc((size_t)g->n_inputs + 1, sizeof(*shape));
    const ch_shape *each = shape;
    int             variant = 0;
    ch_signature    sig = {1, 1, &variant, &each};
    ch_graph       *numbers = NULL;
    ch_program     *p = NULL;
    bool            ok = true;

    for (int i = 0; i < g->n_inputs && ok; i++)
        ok = shape_of(&g->input[i]->dims, &shape[i]);
    if (ok && ch__specialise(g, &sig, &numbers) == CH_OK) {
        if (ch__program_new(numbers, NULL, &p) == CH_OK) {
            char text[256];

            ch__program_print(p, text, sizeof(text));
            if (!has_body(g)) /* a loop may go on for ever */
                run(p);
            ch__program_unref(p);
        }
        ch_graph_unref(numbers);
    }
    free(shape);
}

static void no_log(const ch_log_record *record, void *arg)
{
    (void)record, (void)arg;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    ch_log_set_sink(no_log, NULL, CH_LOG_ERROR);
    ch_device_current(); /* makes the devices, once */
    (void)argc, (void)argv;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t   live = ch__mem_live();
    ch_graph *g = NULL;

    if (ch_graph_decode(data, size, &g) == CH_OK) {
        check_print(g);
        check_encode(g);
        check_program(g);
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
        n = alter(&d, data, size, max_size);
        break;
    default:
        n = grow(&d, data, size, max_size);
    }
    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
