/* spmd/sums.c -- which partial sums wait for an addition, and what their reduction then costs.
 *
 * A partial sum may be reduced as soon as it is computed, or after the calls that keep it
 * partial: additions, sums over axes, products with a number, and moves. To wait is better if
 * an addition adds it to another partial sum, because then one reduction is enough for both. It
 * is also better if a sum over axes has fewer elements. To reduce at once is better if another
 * call needs the complete value anyway.
 *
 * This pass estimates, before ranges are chosen, the bytes of the reductions that follow if a
 * value stays partial (ch_value_plan.due). It goes backwards from the results. Each input of an
 * addition has an equal share in the bytes of the result. choose.c multiplies the cost of a
 * reduction by the share of the call in the bytes that are due.
 *
 * A product or quotient stays partial like a sum. If one of its summands is not finite, the
 * result is not a number, although that of one device may be infinite.
 *
 * The pass predicts from the wanted layouts which values will be partial. A wrong prediction
 * can move more bytes, but gives no wrong value.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "spmd/divide.h"

bool ch__may_stay_partial(const ch_node *call, int i)
{
    unsigned flags = call->op->flags;

    if (call->chosen_device > 0)
        return false;
    return (flags & CH_OP_LINEAR) != 0 || ((flags & CH_OP_LINEAR_0) != 0 && i == 0) ||
           ((flags & CH_OP_LINEAR_1) != 0 && i == 1);
}

/* Returns true if the wanted layouts of the inputs divide a factor that is summed over. */
static bool divides_a_sum(const ch_core_division *d, const ch_call_plan *p)
{
    const ch_factors *f = &p->rule;

    for (int i = 0; i < p->call->n_in && f->n_set_out > 0; i++) {
        const ch_core_layout *l = d->value[p->call->in[i]->id].want;

        for (int k = 0; k < l->rank; k++)
            for (int j = 0; l->parts[k] > 1 && j < f->in[i][k].n; j++) {
                int factor = f->in[i][k].factor[j];

                if ((f->factor[factor].kind == CH_RED || f->factor[factor].kind == CH_IDX) &&
                    f->factor[factor].combiner == CH_PARTIAL_SUM &&
                    ch__outputs_with(f, factor) < f->n_set_out)
                    return true;
            }
    }
    return false;
}

/* Returns true if the result of a call will probably be a partial sum. */
static bool will_be_sum(const ch_core_division *d, const ch_call_plan *p)
{
    const ch_node *call = p->call;
    int            n = 0, n_stay = 0;

    if (ch__is_source(call) || ch__is_pack(call) || p->bodies != NULL)
        return false;
    for (int i = 0; i < call->n_in; i++) {
        bool is_sum = d->value[call->in[i]->id].is_sum;

        n += is_sum;
        n_stay += is_sum && ch__may_stay_partial(call, i);
    }
    if ((call->op->flags & CH_OP_LINEAR) != 0 && n > 0)
        return n_stay == call->n_in;
    return (n == 1 && n_stay == 1) || divides_a_sum(d, p);
}

double ch__sum_share(const ch_core_division *d, const ch_node *call, int i)
{
    double bytes, due;

    if (!ch__may_stay_partial(call, i) || !d->value[call->id].is_sum)
        return INFINITY;
    bytes = (double)ch__bytes(call);
    due = d->value[call->id].due;
    return (due < bytes ? due : bytes) /
           ((call->op->flags & CH_OP_LINEAR) != 0 ? call->n_in : 1);
}

void ch__find_sums(ch_core_division *d)
{
    for (int i = 0; i < d->n_calls; i++) {
        const ch_node *call = d->call[i].call;
        bool           is_sum = will_be_sum(d, &d->call[i]);

        for (int k = 0; k < call->n_out; k++) {
            d->value[call[k].id].is_sum = is_sum;
            d->value[call[k].id].due = 0;
        }
    }
    for (int i = 0; i < d->g->n_outputs; i++)
        d->value[d->g->output[i].node->id].due = INFINITY;
    for (int i = 0; i < d->g->n_resources; i++)
        if (d->g->resource[i].value != NULL)
            d->value[d->g->resource[i].value->id].due = INFINITY;
    for (int i = d->n_calls - 1; i >= 0; i--) {
        const ch_node *call = d->call[i].call;

        for (int k = 0; k < call->n_in; k++)
            d->value[call->in[k]->id].due += ch__sum_share(d, call, k);
    }
}
