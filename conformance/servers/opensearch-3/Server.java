import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.opensearch.Version;
import org.opensearch.analysis.common.CommonAnalysisModulePlugin;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.Settings;
import org.opensearch.http.HttpServerTransport;
import org.opensearch.index.mapper.MapperExtrasModulePlugin;
import org.opensearch.index.reindex.ReindexModulePlugin;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.painless.PainlessModulePlugin;
import org.opensearch.plugins.PluginInfo;
import org.opensearch.transport.Netty4ModulePlugin;

/** One node, with the settings that it is given as name=value. It ends, and its home with it, when its standard input does. */
public final class Server extends Node {
    private static final List<PluginInfo> PLUGINS = Stream
        .of(PainlessModulePlugin.class, ReindexModulePlugin.class, Netty4ModulePlugin.class,
            CommonAnalysisModulePlugin.class, MapperExtrasModulePlugin.class)
        .map(plugin -> new PluginInfo(plugin.getSimpleName(), "classpath plugin", "NA", Version.CURRENT,
            String.valueOf(Runtime.version().feature()), plugin.getName(), null, List.of(), false))
        .collect(Collectors.toList());

    private Server(Settings settings) {
        super(
            InternalSettingsPreparer.prepareEnvironment(
                settings, Map.of(), Path.of(settings.get("path.home"), "config"), () -> settings.get("node.name")),
            PLUGINS,
            true);
    }

    @Override
    protected void configureNodeAndClusterIdStateListener(ClusterService service) {
        // It would configure the log of the whole process.
    }

    public static void main(String[] args) throws Exception {
        Settings.Builder settings = Settings.builder();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Settings all = settings.build();
        for (String folder : List.of("config", "modules", "plugins", "data", "logs")) {
            Files.createDirectories(Path.of(all.get("path.home"), folder));
        }
        Server server = new Server(all);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(server, Path.of(all.get("path.home")))));
        server.start();
        int port = server.injector().getInstance(HttpServerTransport.class).boundAddress().publishAddress().getPort();
        System.out.println("READY " + port);
        while (System.in.read() >= 0) {
            // Whoever started it is there.
        }
        System.exit(0);
    }

    private static void end(Server server, Path home) {
        try {
            server.close();
        } catch (IOException e) {
            System.err.println(e);
        }
        try (Stream<Path> all = Files.walk(home)) {
            all.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        } catch (IOException e) {
            System.err.println(e);
        }
    }
}
