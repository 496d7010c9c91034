/* graph/limit.c -- the error of a program that needs more memory than its device has.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/limit.h"

#include "base/fault.h"
#include "tensor/print.h"

enum { SHOWN = 3 }; /* values in the message */

/* Inserts a value into a list of SHOWN values, largest first, that NULL may end. */
static void insert(const ch_node **list, const ch_node *n)
{
    for (int i = 0; i < SHOWN; i++) {
        const ch_node *was = list[i];

        if (was != NULL && ch__bytes(was) >= ch__bytes(n))
            continue;
        list[i] = n;
        if (was == NULL)
            return;
        n = was;
    }
}

/* Lists the largest values that the program computes in the arena. */
static void find_largest(const ch_program *p, const ch_node **list)
{
    for (int i = 0; i < p->n_instrs; i++) {
        const ch_instr *x = &p->instr[i];

        for (int k = 0; k < x->n_out && x->node != NULL; k++)
            if (p->slot[x->first_slot + x->n_in + k].kind == CH_AT_ARENA)
                insert(list, &x->node[k]);
    }
}

ch_status ch__fail_program_memory(const ch_program *p, const ch_device *d, const char *where,
                                  const char *step)
{
    const ch_node *largest[SHOWN] = {NULL};
    char           text[CH_FAULT_TEXT / 2], call[160];
    ch_text        o = ch__text(text, sizeof(text));
    size_t         others = ch__device_reserved(d) - ch__device_workspace_bytes(d);

    find_largest(p, largest);
    for (int i = 0; i < SHOWN && largest[i] != NULL; i++) {
        const ch_node *n = largest[i];

        ch__origin_print(n, call, sizeof(call));
        ch__text_add(&o, "%s%s of %s, %lld bytes", i > 0 ? "; " : "",
                     ch__type_text(n->dtype, &n->dims), call, (long long)ch__bytes(n));
    }
    return ch__fail_limit("%s: the step needs %zu bytes on %s (%zu for its values, %zu for "
                          "variables), and the device has %zu (memory_bytes, or "
                          "COHORT_DEVICE_MEMORY); the largest values: %s",
                          step, p->arena_bytes + others, where, p->arena_bytes, others,
                          ch__device_limit(d), text);
}
