/* strategy/central_storage.c -- CentralStorage: all variables on one device.
 *
 * Each compute device runs a replica. Every variable has a single copy, on the parameter
 * device, and all replicas share it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/strategy_ops.h"
#include "strategy/devices.h"

typedef struct central {
    int         n; /* number of replicas */
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

/* Returns the error of ch_device_find for the first device of the type. Its message lists the
 * devices that exist, and the way to configure others. */
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

/* Chooses the compute devices if the program names none: all devices of `type`. If `type` is
 * NULL, all GPUs, or the first CPU if there is no GPU. */
static ch_status default_devices(central *c, const char *type)
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

/* Finds the compute devices and the parameter device. The default parameter device is the only
 * compute device, or CPU 0 if there are several. */
static ch_status find_devices(central *c, const ch_central_storage_options *opt)
{
    const char *label = "central storage strategy";
    ch_status   rc;

    if (opt->n_compute != 0 && opt->type != NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %d compute devices are named and a type (\"%s\") is given; give "
                        "one of the two",
                        label, opt->n_compute, opt->type);
    c->n = opt->n_compute;
    rc = c->n != 0 ? ch__devices_named(label, c->n, opt->compute, true, &c->compute)
                   : default_devices(c, opt->type);
    if (rc != CH_OK)
        return rc;
    if (opt->parameter == NULL && c->n == 1) {
        c->parameter = c->compute[0];
        return CH_OK;
    }
    rc = ch_device_find(opt->parameter != NULL ? opt->parameter : "/cpu:0", &c->parameter);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "%s, parameter device", label);
}

ch_status ch_strategy_central_storage(const ch_central_storage_options *opt, ch_strategy **out)
{
    static const ch_central_storage_options none;

    central  *c;
    ch_status rc;

    if (out == NULL)
        return ch__check_not_null("central storage strategy", "out", out, NULL, NULL);
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
