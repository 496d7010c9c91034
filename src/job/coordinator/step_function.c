/* job/coordinator/step_function.c -- step functions: the step plans that workers receive.
 *
 * A ch_step_function (private.h) holds the FUNCTION message with the encoded step plan. The
 * strategy adds it once for each recorded step (ch__coord_add_function); workers.c sends it to
 * a worker before the first step that uses it there. It is freed when the program has forgotten
 * it and the last step that uses it has ended: then workers drop the plan, and servers drop the
 * graphs of its updates.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/mem.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

void ch__step_function_free(ch_step_function *f)
{
    if (f == NULL)
        return;
    ch__message_unref(f->message);
    ch__free(f->op);
    ch__free(f);
}

void ch__step_function_free_unused(const ch_coord_context *t, ch_step_function *f)
{
    if (!f->is_forgotten || f->n_steps > 0)
        return;
    (void)ch__map_remove(&t->c->functions, (ch_key){f->number, 0});
    ch__workers_drop(t, f->number, CH_SENT_STEP_FUNCTION);
    ch__servers_free_updates(t, f->first_update, f->n_updates);
    ch__step_function_free(f);
}

/* Creates the record of a step function. Takes the message over, on an error too. */
static ch_status record_function(ch_coord *c, uint64_t number, const ch_function_spec *spec,
                                 ch_message *p)
{
    ch_step_function *f = ch__calloc(1, sizeof(*f));
    ch_status         rc = f == NULL ? ch__fail_memory("a function")
                                     : ch__map_set(&c->functions, (ch_key){number, 0}, f);

    if (rc != CH_OK) {
        ch__message_unref(p);
        ch__free(f);
        return rc;
    }
    f->number = number;
    (void)snprintf(f->name, sizeof(f->name), "%s", spec->name);
    f->n_ops = spec->n_ops;
    f->op = spec->op;
    f->message = p;
    f->first_update = spec->updates.first;
    f->n_updates = spec->updates.n;
    f->has_results = spec->has_results;
    return CH_OK;
}

/* Makes the FUNCTION message: the plan and the initial values of per-worker variables. Takes
 * the plan over, on an error too. */
static ch_status pack_function(const ch_coord *c, uint64_t number, ch_tensor *plan, int n,
                               const ch_per_worker_spec *per_worker, ch_message **out)
{
    Cohort__WorkerFunction   m;
    uint64_t                *server = ch__calloc((size_t)c->opt.n_servers + 1, sizeof(*server));
    Cohort__WorkerVariable  *entry = ch__calloc((size_t)n + 1, sizeof(*entry));
    Cohort__WorkerVariable **list = ch__calloc((size_t)n + 1, sizeof(*list));
    ch_tensor              **tensor = ch__calloc((size_t)n + 1, sizeof(*tensor));
    ch_status                rc = CH_OK;

    cohort__worker_function__init(&m);
    m.function = number;
    m.servers = server;
    m.per_worker = list;
    if (server == NULL || entry == NULL || list == NULL || tensor == NULL) {
        rc = ch__fail_memory("a function");
        ch_tensor_unref(plan);
    } else {
        for (int i = 0; i < c->opt.n_servers; i++)
            server[m.n_servers++] = c->server[i].incarnation;
        tensor[0] = plan;
        for (int i = 0; i < n; i++) {
            cohort__worker_variable__init(&entry[i]);
            entry[i].variable = per_worker[i].number;
            entry[i].read = per_worker[i].is_read;
            entry[i].written = per_worker[i].is_written;
            list[m.n_per_worker++] = &entry[i];
            tensor[1 + i] = ch_tensor_ref(per_worker[i].initial);
        }
        rc = ch__message_pack(CH_WORKER_FUNCTION, &m.base, 1 + n, tensor, out);
    }
    ch__free(server);
    ch__free(entry);
    ch__free(list);
    ch__free(tensor);
    return rc;
}

ch_status ch__coord_add_function(ch_task *coord, const ch_function_spec *f, ch_tensor *plan,
                                 uint64_t *number)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_message      *p = NULL;
    ch_status        rc =
        pack_function(t.c, t.c->n_numbers + 1, plan, f->n_per_worker, f->per_worker, &p);

    if (rc == CH_OK)
        rc = record_function(t.c, t.c->n_numbers + 1, f, p);
    if (rc == CH_OK)
        *number = ++t.c->n_numbers;
    else
        ch__free(f->op);
    return ch__coord_leave(coord, rc);
}

void ch__coord_forget_function(ch_task *coord, uint64_t function)
{
    ch_coord_context  t = ch__coord_enter(coord);
    ch_step_function *f =
        t.c != NULL ? ch__map_find(&t.c->functions, (ch_key){function, 0}) : NULL;

    if (f != NULL) {
        f->is_forgotten = true;
        ch__step_function_free_unused(&t, f);
    }
    ch__task_leave(coord);
}
