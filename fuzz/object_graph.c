/* fuzz/object_graph.c -- decodes arbitrary bytes as an object graph.
 *
 * A graph that is decoded must be encoded to a message that decodes to the same graph.
 *
 * covers: src/ckpt/object_graph.c
 * longest: 400
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/object_graph.h"

#include "file/help.h"

static void check_key(const char *name)
{
    ch_bytes_builder key = {0};

    ch__object_key_add(&key, name);
    ch__bytes_builder_add(&key, "", 1);
    MUST(!key.has_failed && ch__object_key_unescape(key.at) && strcmp(key.at, name) == 0);
    ch__bytes_builder_drop(&key);
    char *text = fuzz_alone(name, strlen(name) + 1);
    (void)ch__object_key_unescape(text);
    free(text);
}

static void check_graph(const ch_object_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const ch_object_node *x = &g->node[i];

        for (int k = 0; k < x->n_children; k++) {
            MUST(x->child[k].node >= 0 && x->child[k].node < g->n);
            check_key(x->child[k].name);
        }
        for (int k = 0; k < x->n_slots; k++)
            MUST(x->slot[k].variable < g->n && x->slot[k].slot < g->n);
    }
}

static void decode_once(const char *text)
{
    ch_object_graph g;

    if (ch__object_graph_decode((ch_str){text, 2}, &g) == CH_OK)
        ch__free(g.memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t          live = ch__mem_live();
    char            *alone = fuzz_alone(data, size);
    ch_bytes_builder first = {0}, second = {0};
    ch_object_graph  g, again;

    if (fuzz_hash(data, size) % 16 == 0)
        with_failures(0, decode_once, "\x0a\x00");
    if (ch__object_graph_decode((ch_str){alone, size}, &g) == CH_OK) {
        check_graph(&g);
        ch__object_graph_encode(&g, &first);
        MUST(!first.has_failed);
        MUST(ch__object_graph_decode((ch_str){first.at, (size_t)first.n}, &again) == CH_OK);
        MUST(again.n == g.n);
        ch__object_graph_encode(&again, &second);
        MUST(first.n == second.n &&
             (first.n == 0 || memcmp(first.at, second.at, (size_t)first.n) == 0));
        ch__free(again.memory);
        ch__free(g.memory);
    }
    ch__bytes_builder_drop(&first);
    ch__bytes_builder_drop(&second);
    free(alone);
    MUST(ch__mem_live() == live);
    return 0;
}
