/* cluster/simple.c -- ch_resolver_simple: a cluster that the program gives.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "cluster/resolver.h"

typedef struct simple {
    ch_cluster     *cluster;
    char            master[CH_MASTER_BYTES];
    ch_accelerators accelerators;
} simple;

static ch_status simple_cluster(void *self, ch_cluster **out)
{
    *out = ch_cluster_ref(((simple *)self)->cluster);
    return CH_OK;
}

static ch_status simple_self(void *self, ch_resolver_self *out)
{
    (void)self, (void)out; /* only the program sets the task */
    return CH_OK;
}

/* Writes the address of the requested task if both type and id are given, else the `master` of
 * the options. The task of this process does not count. */
static ch_status simple_master(void *self, const ch_resolver_self *requested,
                               const ch_resolver_self *mine, char text[CH_MASTER_BYTES])
{
    simple *s = self;

    (void)mine;
    if (requested->task_type[0] != '\0' && requested->task_id >= 0)
        return ch__task_master(s->cluster, requested, text);
    return ch__copy_text("master", s->master, text, CH_MASTER_BYTES);
}

static ch_status simple_accelerators(void *self, const ch_resolver_self *requested,
                                     const ch_resolver_self *mine, ch_accelerators *out)
{
    (void)requested, (void)mine;
    *out = ((simple *)self)->accelerators;
    return CH_OK;
}

static void simple_close(void *self)
{
    simple *s = self;

    ch_cluster_unref(s->cluster);
    ch__free(s);
}

static const ch_resolver_ops simple_ops = {"Simple",      simple_cluster,      simple_self,
                                           simple_master, simple_accelerators, simple_close};

ch_status ch_resolver_simple(ch_cluster *c, const ch_simple_options *opt, ch_resolver **out)
{
    simple   *s;
    ch_status rc = ch__check_not_null("a resolver of a cluster", "the cluster", c, "out", out);

    if (rc != CH_OK)
        return rc;
    if (opt != NULL && (opt->accelerators.n < 0 || opt->accelerators.n > CH_ACCELERATOR_TYPES))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a resolver of a cluster: accelerators.n is %d, which is out of range",
                        opt->accelerators.n);
    s = ch__calloc(1, sizeof(*s));
    if (s == NULL)
        return ch__fail_memory("a resolver");
    if (opt != NULL) {
        s->accelerators = opt->accelerators;
        if (opt->master != NULL)
            rc = ch__copy_text("master", opt->master, s->master, sizeof(s->master));
    }
    if (rc == CH_OK)
        rc = ch_resolver_new(&simple_ops, s, opt != NULL ? &opt->mine : NULL, out);
    if (rc == CH_OK)
        s->cluster = ch_cluster_ref(c);
    else
        ch__free(s);
    return rc;
}
