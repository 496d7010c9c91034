/* strategy/central_storage.c -- every variable once, on one device; a replica on each of several.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/strategy_ops.h"
#include "strategy/devices.h"

typedef struct central {
    int         n;
    ch_device **compute;
    ch_device  *parameter;
} central;

static ch_device *const *devices(void *self)
{
    return ((central *)self)->compute;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)spec;
    out->device[0] = ((central *)self)->parameter;
    return CH_OK;
}

static void close(void *self)
{
    central *c = self;

    ch__free(c->compute);
    ch__free(c);
}

static const ch_strategy_ops    central_ops = {"CentralStorage", devices, place, close};
static const ch_strategy_traits central_traits = {.between_graph = true,
                                                  .should_init = true,
                                                  .should_checkpoint = true,
                                                  .should_save_summary = true};

/* The error for the first device of the type says which devices there are, and how to get others. */
static ch_status fail_no_type(const char *type)
{
    char       name[64];
    ch_device *none = NULL;
    ch_status  rc;

    (void)snprintf(name, sizeof(name), "%s:0", type);
    rc = ch_device_find(name, &none);
    return ch__fail_at(rc != CH_OK ? rc : CH_INVALID_ARGUMENT,
                       "central storage strategy: there is no device of type \"%s\"", type);
}

/* All of the type that was said; else all GPUs, or the first CPU. */
static ch_status usual_devices(central *c, const char *type)
{
    bool        has_gpu = ch_device_count("GPU") > 0;
    const char *all = type != NULL ? type : has_gpu ? "GPU" : "CPU";
    ch_status   rc = ch__devices_of_type(all, &c->n, &c->compute);

    if (rc == CH_OK && c->n == 0)
        rc = fail_no_type(all);
    if (rc == CH_OK && type == NULL && !has_gpu)
        c->n = 1;
    return rc;
}

static ch_status find_devices(central *c, const ch_central_storage_options *opt)
{
    const char *what = "central storage strategy";
    ch_status   rc;

    if (opt->n_compute != 0 && opt->type != NULL)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: %d compute devices are named, and all of type \"%s\" are asked for; "
            "give one of the two",
            what, opt->n_compute, opt->type);
    c->n = opt->n_compute;
    rc = c->n != 0 ? ch__devices_named(what, c->n, opt->compute, true, &c->compute)
                   : usual_devices(c, opt->type);
    if (rc != CH_OK)
        return rc;
    if (opt->parameter == NULL && c->n == 1) {
        c->parameter = c->compute[0];
        return CH_OK;
    }
    rc = ch_device_find(opt->parameter != NULL ? opt->parameter : "/cpu:0", &c->parameter);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "%s, parameter device", what);
}

ch_status ch_strategy_central_storage(const ch_central_storage_options *opt, ch_strategy **out)
{
    static const ch_central_storage_options none;

    central  *c;
    ch_status rc;

    if (out == NULL)
        return ch__want_given("central storage strategy", "out", out, NULL, NULL);
    opt = opt != NULL ? opt : &none;
    c = ch__calloc(1, sizeof(*c));
    if (c == NULL)
        return ch__fail_memory("central storage strategy");
    rc = find_devices(c, opt);
    if (rc == CH_OK)
        rc = ch_strategy_new(&central_ops, c,
                             &(ch_strategy_parts){.n_replicas = c->n,
                                                  .communication = opt->communication,
                                                  .n_parameter = 1,
                                                  .parameter = &c->parameter,
                                                  .traits = &central_traits,
                                                  .isolates_state = true},
                             out);
    if (rc != CH_OK)
        close(c);
    return rc;
}
