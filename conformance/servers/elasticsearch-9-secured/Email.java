import java.util.Map;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.core.KeywordTokenizer;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.plugins.AnalysisPlugin;
import org.elasticsearch.plugins.Plugin;

/**
 * What the index of users and API keys is made with and the archive lacks: an analyzer for the users' addresses. This
 * one leaves them as they are; nobody looks for them here.
 */
public final class Email extends Plugin implements AnalysisPlugin {
    @Override
    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Map.of("pattern_capture", (index, environment, name, settings) -> same(name), "unique",
            (index, environment, name, settings) -> same(name));
    }

    @Override
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        return Map.of("uax_url_email",
            (index, environment, name, settings) -> TokenizerFactory.newFactory(name, KeywordTokenizer::new));
    }

    private static TokenFilterFactory same(String name) {
        return new TokenFilterFactory() {
            @Override
            public String name() {
                return name;
            }

            @Override
            public TokenStream create(TokenStream tokens) {
                return tokens;
            }
        };
    }
}
