/* save/marks.c -- begins and ends the marks of changed rows for a manager.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/marks.h"

#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "save/save.h"
#include "strategy/changed_rows.h"

typedef struct marked_var {
    ch_var     *var; /* referenced */
    const char *key; /* in the base */
} marked_var;

ch_status ch__save_marks_own(ch_save_marks *m, ch_strategy *st)
{
    int i = 0;

    while (i < m->n_strategies && m->strategy[i] != st)
        i++;
    if (i == m->n_strategies) {
        if (!ch__grow((void **)&m->strategy, &m->cap_strategies, i + 1, sizeof(ch_strategy *)))
            return ch__fail_memory("the marks of changed rows");
        m->strategy[m->n_strategies++] = ch_strategy_ref(st);
    }
    st->marks_owner = m;
    return CH_OK;
}

/* Marks the rows of a variable from now on. The cut has marked variables on servers. */
static ch_status mark(ch_save_marks *m, const ch_saved_value *x)
{
    marked_var *added = ch__arena_alloc(&m->memory, sizeof(*added));
    ch_status   rc = CH_OK;

    if (added != NULL)
        added->key = ch__arena_strdup(&m->memory, x->key);
    if (added == NULL || added->key == NULL)
        return ch__fail_memory("the marks of changed rows");
    rc = ch__map_set(&m->marked, ch__key((uintptr_t)x->var), added);
    if (rc == CH_OK && !ch__saved_is_remote(x->var)) {
        rc = ch__mark_rows(x->var);
        if (rc == CH_OK)
            x->var->marks_owner = m;
        else
            ch__map_remove(&m->marked, ch__key((uintptr_t)x->var));
    }
    if (rc == CH_OK)
        added->var = ch_var_ref(x->var);
    return rc;
}

/* Frees marks of `owner` that were begun before; variables that `owner` holds anew stay
 * marked. */
static void drop(ch_save_marks *old, const ch_save_marks *owner)
{
    for (int i = 0; i < old->marked.cap; i++) {
        marked_var *x = old->marked.entry[i].value;

        if (x == NULL)
            continue;
        if (x->var->marks_owner == owner &&
            ch__map_find(&owner->marked, ch__key((uintptr_t)x->var)) == NULL) {
            ch__unmark_rows(x->var);
            x->var->marks_owner = NULL;
        }
        ch_var_unref(x->var);
    }
    ch__map_drop(&old->marked);
    ch__arena_drop(&old->memory);
}

void ch__save_marks_begin(ch_save_marks *m, const ch_tree *t)
{
    ch_save_marks old = {.memory = m->memory, .marked = m->marked};

    m->memory = (ch_arena){NULL, 0};
    m->marked = (ch_map){.n = 0};
    for (int i = 0; i < t->n_values; i++) {
        const ch_var *v = t->value[i].var;
        bool          has_rows = v != NULL && v->tiles == NULL &&
                        (ch__saved_is_bytes(v) || ch__saved_is_remote(v)) &&
                        v->shape.rank > 0 && ch_shape_count(v->shape) > 0;

        if (has_rows && mark(m, &t->value[i]) != CH_OK)
            ch__log(CH_LOG_WARNING, "checkpoint",
                    "%s is stored whole in the next deltas: its rows cannot be marked: %s",
                    t->value[i].key, ch_error_message());
    }
    drop(&old, m);
}

bool ch__save_marks_hold(const ch_save_marks *m, const ch_saved_value *x)
{
    const marked_var *found = ch__map_find(&m->marked, ch__key((uintptr_t)x->var));
    const void       *owner =
        ch__saved_is_remote(x->var) ? x->var->strategy->marks_owner : x->var->marks_owner;

    return found != NULL && owner == m && strcmp(found->key, x->key) == 0;
}

void ch__save_marks_end(ch_save_marks *m)
{
    ch_save_marks old = {.memory = m->memory, .marked = m->marked};

    m->marked = (ch_map){.n = 0};
    drop(&old, m);
    for (int i = 0; i < m->n_strategies; i++) {
        if (m->strategy[i]->marks_owner == m) {
            ch__cut_end_marks(m->strategy[i]);
            m->strategy[i]->marks_owner = NULL;
        }
        ch_strategy_unref(m->strategy[i]);
    }
    ch__free(m->strategy);
    *m = (ch_save_marks){.n_strategies = 0};
}
