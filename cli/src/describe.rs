//! `verbline describe`: the text of a `.proto` file, for one symbol.

use crate::arguments::Describe;
use crate::failure::Failure;
use crate::output::Output;
use crate::proto_text;
use crate::schema::Schema;
use crate::target::Target;

pub(crate) async fn run(arguments: Describe, output: &mut Output) -> Result<(), Failure> {
    let symbol = if arguments.protos.files.is_empty() {
        let target = Target::connect(arguments.connection).await?;
        Schema::of_server(&target).symbol(&arguments.symbol).await?
    } else {
        // The server is not asked, and need not run.
        let schema = Schema::of_files(&arguments.protos)?;
        schema.symbol(&arguments.symbol).await?
    };
    output.text(&proto_text::of(&symbol))
}
