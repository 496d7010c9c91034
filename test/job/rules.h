/* test/job/rules.h -- a list of all update rules of the optimizers, for tests of every rule.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_RULES_H
#define TEST_JOB_RULES_H

#include "cohort/optimizer.h"

typedef ch_status (*rule_fn)(const ch_optimizer_options *opt, ch_optimizer **out);

#define RULE(name, call)                                                                       \
    static ch_status name(const ch_optimizer_options *opt, ch_optimizer **out)                 \
    {                                                                                          \
        return call;                                                                           \
    }

RULE(sgd, ch_optimizer_sgd(0.1, NULL, opt, out))
RULE(momentum, ch_optimizer_sgd(0.1, &(ch_optimizer_sgd_options){.momentum = 0.9}, opt, out))
RULE(nesterov,
     ch_optimizer_sgd(0.1, &(ch_optimizer_sgd_options){.momentum = 0.9, .nesterov = true}, opt,
                      out))
RULE(adagrad, ch_optimizer_adagrad(0.1, NULL, opt, out))
RULE(adagrad_rows,
     ch_optimizer_adagrad(0.1, &(ch_optimizer_adagrad_options){.row_wise = true}, opt, out))
RULE(rmsprop, ch_optimizer_rmsprop(0.1, NULL, opt, out))
RULE(rmsprop_momentum,
     ch_optimizer_rmsprop(0.1, &(ch_optimizer_rmsprop_options){.momentum = 0.9}, opt, out))
RULE(rmsprop_centered,
     ch_optimizer_rmsprop(0.1, &(ch_optimizer_rmsprop_options){.centered = true}, opt, out))
RULE(rmsprop_both,
     ch_optimizer_rmsprop(0.1,
                          &(ch_optimizer_rmsprop_options){.centered = true, .momentum = 0.9},
                          opt, out))
RULE(adam, ch_optimizer_adam(0.1, NULL, opt, out))
RULE(amsgrad, ch_optimizer_adam(0.1, &(ch_optimizer_adam_options){.amsgrad = true}, opt, out))
RULE(adamw, ch_optimizer_adamw(0.1, NULL, opt, out))
RULE(adamax, ch_optimizer_adamax(0.1, NULL, opt, out))
RULE(ftrl,
     ch_optimizer_ftrl(0.1, &(ch_optimizer_ftrl_options){.l1 = 0.01, .l2 = 0.01}, opt, out))
RULE(lamb, ch_optimizer_lamb(0.1, NULL, opt, out))

static const struct {
    const char *name;
    rule_fn     make;
} rules[] = {
    {"sgd", sgd},
    {"momentum", momentum},
    {"nesterov", nesterov},
    {"adagrad", adagrad},
    {"adagrad_rows", adagrad_rows},
    {"rmsprop", rmsprop},
    {"rmsprop_momentum", rmsprop_momentum},
    {"rmsprop_centered", rmsprop_centered},
    {"rmsprop_both", rmsprop_both},
    {"adam", adam},
    {"amsgrad", amsgrad},
    {"adamw", adamw},
    {"adamax", adamax},
    {"ftrl", ftrl},
    {"lamb", lamb},
};

enum { N_RULES = sizeof(rules) / sizeof(rules[0]) };

#endif
