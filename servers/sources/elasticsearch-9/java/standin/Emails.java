package standin;

import java.util.Map;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.core.KeywordTokenizer;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;

/**
 * The parts of the analyzer of addresses that the index of users and API keys is made with. These leave an address as it
 * is; nobody looks for one here.
 */
final class Emails {
    static final Map<String, AnalysisProvider<TokenFilterFactory>> FILTERS = Map.of("pattern_capture",
        (index, environment, name, settings) -> same(name), "unique",
        (index, environment, name, settings) -> same(name));
    static final Map<String, AnalysisProvider<TokenizerFactory>> TOKENIZERS = Map.of("uax_url_email",
        (index, environment, name, settings) -> TokenizerFactory.newFactory(name, KeywordTokenizer::new));

    private Emails() {}

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
