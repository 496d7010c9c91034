/* test/doc/prelude.h -- variables and headers that the snippets of the guides use. Each snippet
 * is compiled behind this file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_DOC_PRELUDE_H
#define TEST_DOC_PRELUDE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/cohort.h"

static ch_status              rc;
static char                   text[4096];
static int                    i, n, epoch, epochs = 3;
static ch_strategy           *st;
static ch_model              *m;
static ch_optimizer          *opt;
static ch_step               *s; /* for snippets of the body of a step */
static ch_dataset            *d, *train, *test;
static ch_iterator           *it;
static ch_tensor             *x, *y, *t;
static ch_tuple              *batch, *out;
static ch_function           *f;
static ch_var                *w, *b, *steps;
static ch_metric             *accuracy;
static ch_callback           *backup;
static ch_checkpoint         *checkpoint;
static ch_per_worker         *each;
static ch_coordinator        *coordinator;
static ch_checkpoint_manager *manager;
static ch_restored           *restored;
static ch_history            *history;
static void                  *bytes;
static size_t                 size;
static double                 number;

#endif
