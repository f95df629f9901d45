/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/residual_streams.h"

#include "dispatch/model/build_impl.h"
#include "kernels/hyper/hyper.h"

kt_view kt_hyper_streams(kt_build *b, const kt_stream_rule *rule) {
    const kt_graph *g = b->graph;
    const kt_view x = kt_residual(b);
    kt_node n;

    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_STREAMS) return g->nodes[i].out;
    n = kt_build_node_of(KT_NODE_STREAMS, x, kt_build_value(b, rule->count * x.width));
    n.streams = *rule;
    kt_build_add_node(b, &n);
    return n.out;
}

static void add_weights(kt_build *b, kt_node *n, const kt_hyper_names *names, int64_t outputs,
                        int64_t scales) {
    n->weight = kt_build_vector(
        b, (kt_vec){.name = names->fn, .n = outputs * n->in.width, .rows = outputs});
    n->weight2 = kt_build_vector(b, (kt_vec){.name = names->base, .n = outputs});
    n->weight3 = kt_build_vector(b, (kt_vec){.name = names->scale, .n = scales});
}

kt_hyper_half kt_hyper_mix(kt_build *b, kt_view streams, const kt_hyper_names *names,
                           const kt_stream_rule *rule) {
    const int64_t hidden = streams.width / rule->count, outputs = kt_hyper_outputs(rule->count);
    const int64_t room = (outputs + 15) / 16 * 16; /* whole lines */
    const kt_view out = kt_build_value(b, 2 * hidden + room);
    kt_node n = kt_build_node_of(KT_NODE_HYPER_MIX, streams, out);

    n.streams = *rule;
    add_weights(b, &n, names, outputs, 3);
    kt_build_add_node(b, &n);
    return (kt_hyper_half){.x = {out.value, 0, hidden},
                           .join = {out.value, hidden, outputs},
                           .y = {out.value, hidden + room, hidden}};
}

void kt_hyper_join(kt_build *b, kt_view streams, const kt_hyper_half *half,
                   const kt_stream_rule *rule, bool ends_layer) {
    kt_node n = kt_build_node_of(KT_NODE_HYPER_JOIN, half->y, kt_residual(b));

    n.in2 = half->join;
    n.in3 = streams;
    n.streams = *rule;
    if (!ends_layer) n.out.width = 0;
    kt_build_add_node(b, &n);
}

void kt_hyper_end(kt_build *b, kt_view streams, const kt_hyper_names *names,
                  const kt_stream_rule *rule) {
    kt_node n = kt_build_node_of(KT_NODE_HYPER_END, streams, kt_residual(b));

    n.streams = *rule;
    add_weights(b, &n, names, rule->count, 1);
    kt_build_add_node(b, &n);
}
