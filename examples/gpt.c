/* examples/gpt.c -- a small GPT learns a text, character by character, and continues it.
 *
 *     ./gpt [short]
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "gpt.h"

enum { MORE = 100 };

/* Predicts the most likely character after a piece. */
static void speak(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *logits = ch_model_call(j->model, s, part(ch_step_in(s, 0), 1), false);

    logits = ch_slice(logits, 2, (int64_t[]){0, TIME - 1}, (int64_t[]){1, 1});
    ch_step_out(s, "character", ch_argmax(logits, -1));
}

int main(int argc, char **argv)
{
    int          steps = is_short(argc, argv) ? 80 : 600, end = (int)strlen(text);
    ch_function *learn = NULL, *next = NULL;
    job          j = {.model = new_gpt(NULL)};
    double       loss = 0;

    must(ch_optimizer_adamw(3e-3, NULL, NULL, &j.optimizer));
    must(ch_function_new("learn", train, &j, &learn));
    must(ch_function_new("next", speak, &j, &next));
    for (int i = 0; i <= steps; i++) {
        loss = run(NULL, learn, ROWS, -1);
        if (i % 40 == 0)
            printf("step %3d  loss %.3f\n", i, loss);
    }
    for (int i = end; i < end + MORE; i++) /* each prediction is input for the next */
        text[i] = (char)run(NULL, next, 1, i - TIME - 1);
    printf("%s\n", text + end);
    ch_function_unref(next);
    ch_function_unref(learn);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    return loss < 1.5 ? 0 : 1;
}
