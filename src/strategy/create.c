/* strategy/create.c -- what is asked of variables that are about to be made: hooks, and whose place to share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "strategy/strategy.h"

enum { MOST = 64 };

static _Thread_local struct {
    ch_var *beside[MOST]; /* referenced */
    int     n_beside;
    struct {
        ch_var_creator fn;
        void          *arg;
    } creator[MOST];
    int n_creators;
} mine;

ch_status ch_colocate_enter(ch_strategy *st, ch_var *v)
{
    ch_strategy *in = ch_strategy_current();

    if (v == NULL)
        return ch__want_given("colocate", "the variable", v, NULL, NULL);
    if (!ch_strategy_is_set())
        return ch__fail(CH_FAILED_PRECONDITION,
                        "colocate with %s: it is for code in a strategy's scope "
                        "(ch_strategy_enter) or step",
                        v->name);
    if (st != NULL && st != in)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "colocate with %s: mixing different strategies: this is the scope of %s", v->name,
            in->label);
    if (v->strategy != in)
        return ch__fail(CH_INVALID_ARGUMENT, "colocate with %s: another strategy made it: %s",
                        v->name, v->strategy->label);
    if (mine.n_beside == MOST)
        return ch__fail(CH_FAILED_PRECONDITION, "colocate: nested more than %d deep", MOST);
    mine.beside[mine.n_beside++] = ch_var_ref(v);
    return CH_OK;
}

int ch__colocate_depth(void)
{
    return mine.n_beside;
}

int ch__creator_depth(void)
{
    return mine.n_creators;
}

void ch_colocate_leave(void)
{
    if (mine.n_beside > 0)
        ch_var_unref(mine.beside[--mine.n_beside]);
}

ch_status ch_var_creator_enter(ch_var_creator fn, void *arg)
{
    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "creator: the function is NULL");
    if (mine.n_creators == MOST)
        return ch__fail(CH_FAILED_PRECONDITION, "creator: nested more than %d deep", MOST);
    mine.creator[mine.n_creators].fn = fn;
    mine.creator[mine.n_creators++].arg = arg;
    return CH_OK;
}

void ch_var_creator_leave(void)
{
    if (mine.n_creators > 0)
        mine.n_creators--;
}

ch_status ch__var_specify(ch_strategy *st, ch_var_spec *spec, const ch_var **beside)
{
    ch_strategy *in = ch_strategy_current();

    if (in != st && in != ch__strategy_default())
        return ch__fail(CH_FAILED_PRECONDITION,
                        "variable %s: mixing different strategies: inside the scope of %s, %s "
                        "makes no variables",
                        spec->name != NULL ? spec->name : "Variable", in->label, st->label);
    for (int i = mine.n_creators - 1; i >= 0; i--) {
        uint64_t  mark = ch__fail_mark();
        ch_status rc = ch__fail_since(mark, mine.creator[i].fn(spec, mine.creator[i].arg));

        if (rc != CH_OK)
            return ch__fail_at(rc, "variable %s", spec->name != NULL ? spec->name : "Variable");
    }
    if (mine.n_beside > 0 && mine.beside[mine.n_beside - 1]->strategy == st)
        *beside = mine.beside[mine.n_beside - 1];
    return CH_OK;
}
