/* train/model.h -- what a model keeps for who trains it.   SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "cohort/model.h"

/* How many inputs it was said to have; 0: nothing was said. */
int ch__model_inputs(const ch_model *m);
/* Goes with the model, or when something else is attached. */
void  ch__model_attach(ch_model *m, void *attached, void (*drop)(void *attached));
void *ch__model_attached(const ch_model *m);

#endif
