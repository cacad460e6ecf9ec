"""Plain English words to build keys and lists from; all of them are different."""

NOUNS = """
acorn anchor ankle anvil apple apron arrow attic badge baker bamboo banjo barn barrel basin basket beacon beetle bell
bench berry blanket blossom boat bonnet bottle boulder bowl branch bread brick bridge broom brush bucket buckle bulb
butter button cabin cable cactus camel candle canoe canvas canyon carpet carriage castle cedar cellar chain chair chalk
cherry chest chimney circle cliff clock cloud clover coat cobbler coin comb compass copper coral cottage cotton cradle
crane crater creek cricket crown crystal cup curtain cushion daisy desk diary dish dolphin donkey door dragon drawer dress
drum eagle easel elbow elm engine envelope fabric falcon farm feather fence fern fiddle field finger flag flame flask
flute forest fork fossil fountain fox frame garden gate ginger glacier glove goat goose grain granite grape guitar hammer
hammock harbour harp hat hawk hedge helmet heron hill honey hook horn horse house island ivory ivy jacket jar jasmine
jewel jungle kettle key kitchen kite kitten knot ladder ladle lagoon lake lamp lantern lark leaf lemon lentil lily lion
lizard lock loom magnet mango map maple marble market meadow medal melon mill mirror mitten moon moss mountain mouse
museum mushroom needle nest oak oar ocean olive onion orchard orchid otter oven owl oyster paddle palace palm panda paper
parrot path peach pear pebble pencil pepper piano pigeon pillow pilot pine pipe planet plate plough plum pocket pond poppy
porch pot prism puddle pumpkin puppet quarry quilt rabbit raft rail rainbow raven reef ribbon rice river robin rocket roof
root rope rose rudder saddle sail salmon sand satchel scarf school seed shed sheep shell shelf ship shoe shovel silver
sled slipper snail spade sparrow spoon squirrel stable star statue stone stove straw stream street sugar swan table tailor
tea temple thimble thistle thread thunder tiger tile timber tin tower train trumpet trunk tulip tunnel turtle umbrella
valley vase velvet violet violin wagon walnut water well whale wheat wheel whistle willow window wing winter wolf wool yarn
""".split()

ADJECTIVES = """
ample ancient blunt bold brave brief bright brisk broad calm careful cheerful clever cold common cosy curious daring dark
deep dense distant dry dusty eager early easy elegant empty fair faithful famous fancy fierce fine firm flat fluffy fond
fragile fresh frosty gentle giant glad golden graceful grand grateful green handy happy hard hasty heavy hollow honest huge
humble hungry icy idle jolly keen kind large late lazy light lively lonely long loud loyal lucky mellow merry mighty mild
misty modest narrow neat new nimble noble odd old pale patient plain polite proud pure quick quiet rapid rare ready red rich
ripe rough round royal rusty salty secret shallow sharp shiny short shy silent simple sincere sleepy slim slow small smooth
soft solid sour spare speedy steady steep still strange strict strong sturdy subtle sunny sweet swift tall tame tender thick
thin tidy tiny tough tranquil true urgent useful vast vivid warm wary weak wealthy wet wide wild windy wise witty yellow young
""".split()

VERBS = """
accept admire adopt agree allow amuse answer appear arrange arrive ask assist avoid bake balance become begin believe belong
bend borrow bounce breathe bring build burn bury call carry catch celebrate choose claim clap climb collect combine compare
complain consider continue cook count cover create cross dance decide decorate defend deliver depend describe dig discover
divide drift drink drive earn eat encourage enjoy enter escape examine explain explore fetch fill find finish fly fold follow
forget forgive gather give glow greet grow guard guess guide handle happen hear help hide hope hurry imagine improve include
invent invite join judge jump knit know laugh learn leave lend lift listen look make manage march measure meet melt mend mix
move murmur notice obey observe offer open order paint pause perform plan plant play polish pour practise praise prefer
prepare pretend promise protect provide pull push put reach read receive recite refuse remember repair repeat reply rescue
rest return ride rise run save search sell send serve sew share shout sing sit sketch sleep slide smile solve speak spend
spin stand stay steer stir stretch study supply swim teach tell think throw touch travel treat trust try turn twist visit
wait walk wander wash watch weave weigh whisper win wonder work write yawn
""".split()
