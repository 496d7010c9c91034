/* cluster/simple.c -- a cluster that the program has.   SPDX-License-Identifier: Apache-2.0 */
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
    (void)self, (void)out; /* only the program says */
    return CH_OK;
}

/* A task only if all of it is asked for: this process's own is not looked at. */
static ch_status simple_master(void *self, const ch_resolver_self *asked,
                               const ch_resolver_self *mine, char text[CH_MASTER_BYTES])
{
    simple *s = self;

    (void)mine;
    if (asked->task_type[0] != '\0' && asked->task_id >= 0)
        return ch__task_master(s->cluster, asked, text);
    return ch__take_text("master", s->master, text, CH_MASTER_BYTES);
}

static ch_status simple_accelerators(void *self, const ch_resolver_self *asked,
                                     const ch_resolver_self *mine, ch_accelerators *out)
{
    (void)asked, (void)mine;
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
    ch_status rc = ch__want_given("a resolver of a cluster", "the cluster", c, "out", out);

    if (rc != CH_OK)
        return rc;
    if (opt != NULL && (opt->accelerators.n < 0 || opt->accelerators.n > CH_ACCELERATOR_TYPES))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a resolver of a cluster: accelerators of %d types",
                        opt->accelerators.n);
    s = ch__calloc(1, sizeof(*s));
    if (s == NULL)
        return ch__fail_memory("a resolver");
    if (opt != NULL) {
        s->accelerators = opt->accelerators;
        if (opt->master != NULL)
            rc = ch__take_text("master", opt->master, s->master, sizeof(s->master));
    }
    if (rc == CH_OK)
        rc = ch_resolver_new(&simple_ops, s, opt != NULL ? &opt->mine : NULL, out);
    if (rc == CH_OK)
        s->cluster = ch_cluster_ref(c);
    else
        ch__free(s);
    return rc;
}
