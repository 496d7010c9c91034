/* cluster/tpu_resolver.c -- ch_resolver_tpu: the TPU system of a name.
 *
 * A `tpu` is a name that has been read: the TPU devices of this process, addresses of tasks, or
 * a TPU of Google Cloud. It is read once, when the resolver is created: tpu_read takes the name
 * of a list, or the name in the environment, and read_name divides it. Only the first kind can
 * be used. fail_remote is the error of all calls that would need another.
 *
 * tpu_system.c initializes the system of a resolver, and asks it for its mesh.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cluster/resolver.h"
#include "cluster/tpu.h"

#define GRPC          "grpc://"
#define DEFAULT_PORT  "8470"
#define VIRTUAL       "virtual:"
#define NAME_IN_ERROR 200 /* bytes of a name in a message */

typedef enum tpu_kind {
    LOCAL,     /* the TPU devices of this process */
    ADDRESSES, /* tasks at addresses */
    CLOUD      /* a TPU of Google Cloud */
} tpu_kind;

typedef struct tpu {
    ch_arena     arena; /* memory of the texts */
    tpu_kind     kind;
    const char  *name;
    const char  *source; /* environment variable that has the name; NULL: the program gave it */
    const char  *project, *zone; /* NULL: not known */
    bool         has_mesh;
    int          mesh[CH_TPU_AXES]; /* of a name "virtual:..." */
    int          n;                 /* number of addresses */
    const char **address;
    const char  *job, *coordinator, *coordinator_address;

    ch_tpu_topology *topology; /* of ch_tpu_initialize; NULL: not initialized */
} tpu;

static const char reading[] = "a TPU resolver";

/* Copies a text, which may be NULL, to the arena. */
static ch_status copy(tpu *t, const char *text, const char **out)
{
    *out = ch__arena_strdup(&t->arena, text);
    return text != NULL && *out == NULL ? ch__fail_memory(reading) : CH_OK;
}

/* ---- names ---- */

/* Reads a list of names in JSON, which must have a single name. */
static ch_status read_list(tpu *t, const char *text, const char **name)
{
    json_error_t error;
    json_t      *all = json_loads(text, 0, &error);
    ch_status    rc;

    if (all == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the list of names is not JSON: %s", reading,
                        error.text);
    if (json_array_size(all) == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: the list of names is empty", reading);
    else if (json_array_size(all) > 1)
        rc = ch__fail(CH_UNIMPLEMENTED, "%s: a list of %zu names, want a single name", reading,
                      json_array_size(all));
    else if (!json_is_string(json_array_get(all, 0)))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: the list has an entry that is not a name",
                      reading);
    else
        rc = copy(t, json_string_value(json_array_get(all, 0)), name);
    json_decref(all);
    return rc;
}

/* Copies a text of TPU_CONFIG. Leaves *out unchanged if it is not there. */
static ch_status read_member(tpu *t, const json_t *all, const char *name, const char **out)
{
    const json_t *value = json_object_get(all, name);

    if (value == NULL || json_is_null(value))
        return CH_OK;
    if (!json_is_string(value))
        return ch__fail(CH_INVALID_ARGUMENT, "TPU_CONFIG: %s is not a string", name);
    return copy(t, json_string_value(value), out);
}

/* Reads TPU_CONFIG: the name, and the project and the zone unless the program gives them. */
static ch_status read_tpu_config(tpu *t, const char *text, const char **name)
{
    json_t     *all = NULL;
    const char *project = NULL, *zone = NULL;
    ch_status   rc = ch__json_object("TPU_CONFIG", text, &all);

    if (rc != CH_OK)
        return rc;
    rc = read_member(t, all, "tpu_node_name", name);
    if (rc == CH_OK)
        rc = read_member(t, all, "project", &project);
    if (rc == CH_OK)
        rc = read_member(t, all, "zone", &zone);
    json_decref(all);
    if (rc == CH_OK && (*name == NULL || (*name)[0] == '\0'))
        rc = ch__fail(CH_INVALID_ARGUMENT, "TPU_CONFIG: there is no tpu_node_name");
    if (t->project == NULL)
        t->project = project;
    if (t->zone == NULL)
        t->zone = zone;
    return rc;
}

/* Takes the name from the environment. Sets *name to "local" if there is none. */
static ch_status read_environment(tpu *t, const char **name)
{
    static const char *const variable[] = {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"};
    const char              *text;

    for (size_t i = 0; i < sizeof(variable) / sizeof(variable[0]); i++)
        if ((text = ch__env_nonempty(variable[i])) != NULL) {
            t->source = variable[i];
            return copy(t, text, name);
        }
    text = ch__env_nonempty("TPU_CONFIG");
    *name = text != NULL ? NULL : "local";
    if (text == NULL)
        return CH_OK;
    t->source = "TPU_CONFIG";
    return read_tpu_config(t, text, name);
}

/* Returns true if the address ends in a port. Sets *port to its digits. */
static bool find_port(const char *address, const char **port)
{
    const char *bracket = strrchr(address, ']'), *colon = strrchr(address, ':');

    if (colon == NULL || (bracket != NULL && colon < bracket))
        return false;
    *port = colon + 1;
    return true;
}

/* Adds the default port to an address, unless it has a port. */
static ch_status read_address(tpu *t, const char *text, const char **out)
{
    const char *port = "";
    bool        has_port;
    int         number = 1;
    char       *full;
    size_t      bytes;

    if (strncmp(text, GRPC, strlen(GRPC)) == 0)
        text += strlen(GRPC);
    has_port = find_port(text, &port);
    if (text[0] == '\0' || text[0] == ':' || strchr(text, '/') != NULL ||
        (strchr(text, ':') != strrchr(text, ':') && text[0] != '[') ||
        (has_port && (!ch__parse_number(port, strlen(port), 65536, &number) || number == 0)))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: \"%.*s\" is not an address (want host or host:port)", reading,
                        NAME_IN_ERROR, text);
    bytes = strlen(text) + sizeof(":" DEFAULT_PORT);
    full = ch__arena_alloc(&t->arena, bytes);
    if (full == NULL)
        return ch__fail_memory(reading);
    snprintf(full, bytes, "%s%s", text, has_port ? "" : ":" DEFAULT_PORT);
    *out = full;
    return CH_OK;
}

/* Reads the addresses of grpc://host:port,host,... */
static ch_status read_addresses(tpu *t)
{
    char     *text = ch__arena_strdup(&t->arena, t->name), *next;
    size_t    n = 1;
    ch_status rc = CH_OK;

    for (const char *c = t->name; *c != '\0'; c++)
        n += *c == ',';
    if (n > CH_CLUSTER_TASKS)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "%s: %zu addresses, want at most %d", reading, n,
                        CH_CLUSTER_TASKS);
    t->address = ch__arena_alloc(&t->arena, n * sizeof(*t->address));
    if (text == NULL || t->address == NULL)
        return ch__fail_memory(reading);
    for (; rc == CH_OK && text != NULL; text = next) {
        next = strchr(text, ',');
        if (next != NULL)
            *next++ = '\0';
        rc = read_address(t, text, &t->address[t->n++]);
    }
    return rc;
}

/* Finds the kind of the name, and reads its mesh or addresses. */
static ch_status read_name(tpu *t)
{
    t->kind = CLOUD;
    if (strcmp(t->name, "local") == 0) {
        t->kind = LOCAL;
    } else if (strncmp(t->name, VIRTUAL, strlen(VIRTUAL)) == 0) {
        t->kind = LOCAL;
        t->has_mesh = true;
        return ch__tpu_mesh_parse(reading, t->name + strlen(VIRTUAL), t->mesh);
    } else if (strncmp(t->name, GRPC, strlen(GRPC)) == 0) {
        t->kind = ADDRESSES;
        return read_addresses(t);
    }
    return CH_OK;
}

static ch_status check_coordinator(const tpu *t)
{
    if (t->coordinator == NULL && t->coordinator_address != NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: coordinator_address is given and coordinator is NULL", reading);
    if (t->coordinator != NULL && t->coordinator_address == NULL && t->kind != LOCAL)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: a coordinator without an address needs a server in this process; "
                        "set coordinator_address",
                        reading);
    return CH_OK;
}

/* Fills in a TPU from the arguments of ch_resolver_tpu. */
static ch_status tpu_read(tpu *t, const char *name, const ch_tpu_resolver_options *opt)
{
    ch_status rc = copy(t, opt->job != NULL ? opt->job : "worker", &t->job);

    if (rc == CH_OK)
        rc = copy(t, opt->project, &t->project);
    if (rc == CH_OK)
        rc = copy(t, opt->zone, &t->zone);
    if (rc == CH_OK)
        rc = copy(t, opt->coordinator, &t->coordinator);
    if (rc == CH_OK)
        rc = copy(t, opt->coordinator_address, &t->coordinator_address);
    if (rc == CH_OK)
        rc = ch__job_name_check(t->job);
    if (rc == CH_OK && name != NULL && name[0] == '[')
        rc = read_list(t, name, &t->name);
    else if (rc == CH_OK)
        rc = copy(t, name, &t->name);
    if (rc == CH_OK && (t->name == NULL || t->name[0] == '\0'))
        rc = read_environment(t, &t->name);
    if (rc == CH_OK)
        rc = read_name(t);
    return rc == CH_OK ? check_coordinator(t) : rc;
}

/* ---- errors ---- */

/* Fails because the TPU is not that of this process. `call` begins the message. */
static ch_status fail_remote(const tpu *t, const char *call)
{
    const char *project = t->project != NULL ? t->project : "-";
    const char *zone = t->zone != NULL ? t->zone : "-";
    bool        has_source = t->source != NULL;

    if (t->kind == ADDRESSES)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: the TPU at " GRPC "%.*s%s%s%s is in another process, and Cohort "
                        "cannot connect to it; for the TPU devices of this process use the "
                        "name \"local\"",
                        call, NAME_IN_ERROR, t->address[0], has_source ? " (from " : "",
                        has_source ? t->source : "", has_source ? ")" : "");
    return ch__fail(CH_UNIMPLEMENTED,
                    "%s: the TPU \"%.*s\"%s%s (projects/%.60s/locations/%.60s/nodes/%.60s) can "
                    "only be found with Google's API, which Cohort does not use; for the TPU "
                    "devices of this process use the name \"local\"",
                    call, NAME_IN_ERROR, t->name, has_source ? " from " : "",
                    has_source ? t->source : "", project, zone, t->name);
}

/* ---- the resolver ---- */

static ch_status tpu_cluster(void *self, ch_cluster **out)
{
    const tpu     *t = self;
    ch_cluster_job job[] = {{t->job, t->n, t->address, NULL},
                            {t->coordinator, 1, &t->coordinator_address, NULL}};

    if (t->kind == CLOUD)
        return fail_remote(t, "the cluster");
    return ch_cluster_new(t->kind == LOCAL ? 0 : t->coordinator == NULL ? 1 : 2, job, out);
}

static ch_status tpu_self(void *self, ch_resolver_self *out)
{
    const tpu *t = self;
    ch_status  rc = ch__copy_text("job", t->job, out->task_type, sizeof(out->task_type));

    out->task_id = 0;
    return rc == CH_OK
               ? ch__copy_text("RPC layer", "grpc", out->rpc_layer, sizeof(out->rpc_layer))
               : rc;
}

/* Writes the address of the requested task, else of this task. The RPC layer is always
 * "grpc". */
static ch_status tpu_master(void *self, const ch_resolver_self *requested,
                            const ch_resolver_self *mine, char text[CH_MASTER_BYTES])
{
    const tpu       *t = self;
    ch_resolver_self task = ch__requested_or_own(requested, mine);
    ch_cluster      *c = NULL;
    ch_status        rc;

    text[0] = '\0';
    if (t->kind == LOCAL)
        return CH_OK;
    rc = tpu_cluster(self, &c);
    if (rc == CH_OK)
        rc = ch__copy_text("RPC layer", "grpc", task.rpc_layer, sizeof(task.rpc_layer));
    if (rc == CH_OK)
        rc = ch__task_master(c, &task, text);
    ch_cluster_unref(c);
    return rc;
}

static ch_status tpu_accelerators(void *self, const ch_resolver_self *requested,
                                  const ch_resolver_self *mine, ch_accelerators *out)
{
    const tpu *t = self;

    (void)requested, (void)mine;
    if (t->kind != LOCAL)
        return fail_remote(t, "counting accelerators");
    *out = (ch_accelerators){1, {{"TPU", ch_device_count("TPU")}}};
    return CH_OK;
}

static void tpu_close(void *self)
{
    tpu *t = self;

    ch_tpu_topology_unref(t->topology);
    ch__arena_drop(&t->arena);
    ch__free(t);
}

static const ch_resolver_ops tpu_ops = {"TPU",      tpu_cluster,      tpu_self,
                                        tpu_master, tpu_accelerators, tpu_close};

ch_status ch_resolver_tpu(const char *name, const ch_tpu_resolver_options *opt,
                          ch_resolver **out)
{
    static const ch_tpu_resolver_options none;
    tpu                                 *t;
    ch_cluster                          *c = NULL;
    ch_status rc = ch__check_not_null(reading, "out", out, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (opt == NULL)
        opt = &none;
    t = ch__calloc(1, sizeof(*t));
    if (t == NULL)
        return ch__fail_memory(reading);
    rc = tpu_read(t, name, opt);
    if (rc == CH_OK && t->kind == ADDRESSES) /* checks the addresses */
        rc = tpu_cluster(t, &c);
    ch_cluster_unref(c);
    if (rc == CH_OK)
        rc = ch_resolver_new(&tpu_ops, t, &opt->mine, out);
    if (rc != CH_OK)
        tpu_close(t);
    return rc;
}

ch_status ch_resolver_connect(ch_resolver *r)
{
    static const char call[] = "connecting to the tasks of a resolver";
    const tpu        *t = ch__resolver_self_of(r, &tpu_ops);
    ch_cluster       *c = NULL;
    char              tasks[256];
    ch_status         rc = ch__check_not_null(call, "the resolver", r, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (t != NULL)
        return t->kind == LOCAL ? CH_OK : fail_remote(t, call);
    rc = ch_resolver_cluster(r, &c);
    if (rc == CH_OK && ch__cluster_size(c) > 0) {
        ch__cluster_describe(c, tasks, sizeof(tasks));
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "%s: the tasks (%s) are in other processes, and Cohort cannot connect to "
                      "them",
                      call, tasks);
    }
    ch_cluster_unref(c);
    return rc;
}

/* ---- for the system ---- */

ch_status ch__resolver_tpu_local(const ch_resolver *r, const char *call, const int **mesh)
{
    const tpu *t = ch__resolver_self_of(r, &tpu_ops);

    if (t == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the resolver is \"%.*s\", want one of ch_resolver_tpu", call,
                        NAME_IN_ERROR, ch_resolver_name(r));
    if (t->kind != LOCAL)
        return fail_remote(t, call);
    *mesh = t->has_mesh ? t->mesh : NULL;
    return CH_OK;
}

void ch__resolver_tpu_set_topology(ch_resolver *r, ch_tpu_topology *t)
{
    tpu             *self = ch__resolver_self_of(r, &tpu_ops);
    ch_tpu_topology *old = self->topology;

    self->topology = ch_tpu_topology_ref(t);
    ch_tpu_topology_unref(old);
}

ch_tpu_topology *ch_resolver_tpu_topology(const ch_resolver *r)
{
    const tpu *t = ch__resolver_self_of(r, &tpu_ops);

    return t != NULL ? t->topology : NULL;
}
