/* train/model.h -- functions of a model for fit/.   SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "cohort/model.h"

/* Returns the number of inputs that ch_model_new was given; 0: not known. */
int ch__model_inputs(const ch_model *m);
/* ch__model_steps returns the number of training steps that ch_fit has made with the model, in
 * all its calls. It is the number of the next step, which random numbers depend on. */
int64_t ch__model_steps(const ch_model *m);
void    ch__model_set_steps(ch_model *m, int64_t steps);
/* Attaches data to the model, which owns it: `drop` is called when the model is freed or other
 * data is attached. */
void ch__model_attach(ch_model *m, void *attached, void (*drop)(void *attached));
/* Returns the attached data; NULL: none. */
void *ch__model_attached(const ch_model *m);

#endif
