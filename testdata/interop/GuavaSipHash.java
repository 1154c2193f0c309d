import com.google.common.hash.Hashing;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** Prints Guava's number of each string that comes in, one a line, as UTF-8 in Base64. */
class GuavaSipHash {
    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        var out = new StringBuilder();
        for (String line; (line = in.readLine()) != null; ) {
            var key = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            out.append(Hashing.sipHash24().hashString(key, StandardCharsets.UTF_8).asLong()).append('\n');
        }
        System.out.print(out);
    }
}
