package standin;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.elasticsearch.cluster.metadata.IndexNameExpressionResolver;
import org.elasticsearch.cluster.node.DiscoveryNodes;
import org.elasticsearch.cluster.service.ClusterService;
import org.elasticsearch.common.io.stream.NamedWriteableRegistry;
import org.elasticsearch.common.settings.ClusterSettings;
import org.elasticsearch.common.settings.IndexScopedSettings;
import org.elasticsearch.common.settings.Setting;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.common.settings.SettingsFilter;
import org.elasticsearch.features.NodeFeature;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.index.reindex.DeleteByQueryAction;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.plugins.ActionPlugin;
import org.elasticsearch.plugins.AnalysisPlugin;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.plugins.ScriptPlugin;
import org.elasticsearch.rest.RestController;
import org.elasticsearch.rest.RestHandler;
import org.elasticsearch.script.ScriptContext;
import org.elasticsearch.script.ScriptEngine;
import org.elasticsearch.script.UpdateScript;
import org.opensearch.painless.CompilerSettings;
import org.opensearch.painless.PainlessScriptEngine;
import org.opensearch.painless.spi.Allowlist;

/**
 * What the archive of Elasticsearch lacks: Painless, for updates; delete by query; who the server is; and an analyzer of
 * addresses. The first two are OpenSearch's, which were Elasticsearch's until 7.10.
 */
public final class Modules extends Plugin implements ActionPlugin, AnalysisPlugin, ScriptPlugin {
    private ClusterService cluster;

    @Override
    public Collection<?> createComponents(PluginServices services) {
        cluster = services.clusterService();
        return List.of();
    }

    @Override
    public List<Setting<?>> getSettings() {
        return List.of(CompilerSettings.REGEX_ENABLED, CompilerSettings.REGEX_LIMIT_FACTOR);
    }

    @Override
    public ScriptEngine getScriptEngine(Settings settings, Collection<ScriptContext<?>> contexts) {
        return new PainlessScriptEngine(settings, Map.of(UpdateScript.CONTEXT, Allowlist.BASE_ALLOWLISTS));
    }

    @Override
    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Emails.FILTERS;
    }

    @Override
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        return Emails.TOKENIZERS;
    }

    @Override
    public Collection<ActionHandler> getActions() {
        return List.of(new ActionHandler(DeleteByQueryAction.INSTANCE, DeleteByQuery.class));
    }

    @Override
    public Collection<RestHandler> getRestHandlers(Settings settings, NamedWriteableRegistry named,
        RestController controller, ClusterSettings clusterSettings, IndexScopedSettings indexSettings,
        SettingsFilter filter, IndexNameExpressionResolver names, Supplier<DiscoveryNodes> nodes,
        Predicate<NodeFeature> supports) {
        return List.of(new DeleteByQuery.Rest(supports), new Who(() -> cluster));
    }
}
