import com.google.common.hash.Hashing;
import java.nio.charset.StandardCharsets;
import java.sql.DriverManager;

/**
 * Holds the lock of a key in a transaction, in the way a Java program shares it with pglead:
 * java HoldLock.java JDBC-URL KEY. It prints "granted" or "refused"; a granted lock is held until
 * standard input ends.
 */
class HoldLock {
    public static void main(String[] args) throws Exception {
        long id = Hashing.sipHash24().hashString(args[1], StandardCharsets.UTF_8).asLong();
        try (var connection = DriverManager.getConnection(args[0])) {
            connection.setAutoCommit(false);
            boolean granted;
            try (var statement = connection.prepareStatement("SELECT pg_try_advisory_xact_lock(?)")) {
                statement.setLong(1, id);
                try (var row = statement.executeQuery()) {
                    row.next();
                    granted = row.getBoolean(1);
                }
            }
            System.out.println(granted ? "granted" : "refused");
            if (granted) {
                System.in.readAllBytes();
            }
            connection.commit();
        }
    }
}
