import java.io.Closeable;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * One node. It is given the package of its engine, its plugins with commas between them, and its settings as
 * name=value. It ends, and its home with it, when its standard input does.
 *
 * The engines are alike but for their packages, so their classes are found by name.
 */
public final class Server {
    private final String engine;

    private Server(String engine) {
        this.engine = engine;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> settings = new TreeMap<>();
        for (String arg : Arrays.copyOfRange(args, 2, args.length)) {
            String[] pair = arg.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Path home = Path.of(settings.get("path.home"));
        for (String folder : List.of("config", "modules", "plugins", "data", "logs")) {
            Files.createDirectories(home.resolve(folder));
        }
        Server server = new Server(args[0]);
        Closeable node = server.node(args[1].split(","), settings, home);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(node, home)));
        call(node, "start");
        Object http = call(call(node, "injector"), "getInstance", server.type("http.HttpServerTransport"));
        Object port = call(call(call(http, "boundAddress"), "publishAddress"), "getPort");
        System.out.println("READY " + port);
        while (System.in.read() >= 0) {
            // Whoever started it is there.
        }
        System.exit(0);
    }

    private Closeable node(String[] plugins, Map<String, String> settings, Path home) throws Exception {
        Object all = call(call(call(type("common.settings.Settings"), "builder"), "loadFromMap", settings), "build");
        Supplier<String> name = () -> settings.get("node.name");
        Object environment = call(type("node.InternalSettingsPreparer"), "prepareEnvironment", all, Map.of(),
            home.resolve("config"), name);
        // For its own tests, it takes plugins from the class path.
        Constructor<?> make = type("node.Node")
            .getDeclaredConstructor(type("env.Environment"), Collection.class, boolean.class);
        make.setAccessible(true);
        boolean described = make.getGenericParameterTypes()[1].getTypeName().contains("PluginInfo");
        List<Object> found = new ArrayList<>();
        for (String plugin : plugins) {
            found.add(described ? description(plugin) : type(plugin));
        }
        return (Closeable) make.newInstance(environment, found, true);
    }

    /** A plugin as OpenSearch 3 wants it described. */
    private Object description(String plugin) throws Exception {
        Class<?> type = type(plugin);
        Class<?> version = type("Version");
        return type("plugins.PluginInfo")
            .getConstructor(String.class, String.class, String.class, version, String.class, String.class,
                String.class, List.class, boolean.class)
            .newInstance(type.getSimpleName(), "classpath plugin", "NA", version.getField("CURRENT").get(null),
                String.valueOf(Runtime.version().feature()), type.getName(), null, List.of(), false);
    }

    private Class<?> type(String name) throws ClassNotFoundException {
        return Class.forName(engine + "." + name);
    }

    /** Calls the public method of that name that takes these arguments, of an object or of a class. */
    private static Object call(Object on, String name, Object... args) throws Exception {
        Class<?> type = on instanceof Class<?> ? (Class<?>) on : on.getClass();
        for (Method method : type.getMethods()) {
            Class<?>[] takes = method.getParameterTypes();
            if (method.getName().equals(name) && takes.length == args.length
                && IntStream.range(0, args.length).allMatch(i -> takes[i].isInstance(args[i]))) {
                method.setAccessible(true);
                return method.invoke(on, args);
            }
        }
        throw new NoSuchMethodException(type + "." + name);
    }

    private static void end(Closeable node, Path home) {
        try {
            node.close();
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
